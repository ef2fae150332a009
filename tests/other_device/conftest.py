"""What lies in ``on_it`` runs on the device, in processes that the tests here start."""

import os

from tests.built_device import device_folder
from tests.other_device.build import build_once
from tests.other_device.device import LIBRARY_VARIABLE

collect_ignore_glob = [] if LIBRARY_VARIABLE in os.environ else ["on_it/*"]

other_device = device_folder("other-device", build_once)
