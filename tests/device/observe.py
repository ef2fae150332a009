"""Prints what the probe says of this machine's GPUs, one look for each argument: the faults it meets.

``FAKE_NVML_OBSERVED`` names the only one to look at.
"""

import json
import os
import sys
from dataclasses import asdict

from amptui.device.nvml import open_probe

probe = open_probe(os.environ.get("FAKE_NVML_OBSERVED"))
looks = []
for faults in sys.argv[1:]:
    os.environ["FAKE_NVML_FAULTS"] = faults
    gpus = probe.sample()
    looks.append({"probe": type(probe).__name__, "gpus": [asdict(gpu) for gpu in gpus], "note": probe.note})
probe.close()
print(json.dumps(looks))
