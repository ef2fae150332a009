"""A machine with make-believe NVIDIA GPUs: builds the tests' NVML library and the environment to run with it.

``device/fake_nvml.c`` tells what can be set and which faults there are.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parent / "device" / "fake_nvml.c"


def build(folder: Path) -> Path | None:
    """Compile ``libnvidia-ml.so.1`` into ``folder`` and return that; None where no C compiler can.

    The folder goes into ``LD_LIBRARY_PATH`` of a new process: the loader reads it once, at the start.
    """
    folder.mkdir(parents=True, exist_ok=True)
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-shared", "-fPIC"]
    command = [compiler, *flags, "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # What one compiler warns of another does not: it is shown, and fails nothing.
    sys.stderr.write(done.stderr)
    return folder if done.returncode == 0 else None


def environment(folder: Path | None, **settings: str) -> dict[str, str]:
    """This process's environment with the library of ``folder``, or none at all, in reach.

    ``settings`` are the source's variables without their prefix, in lower case: ``gpus="1"``.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FAKE_NVML_")}
    chosen = {f"FAKE_NVML_{name.upper()}": value for name, value in settings.items()}
    return kept | chosen | ({} if folder is None else {"LD_LIBRARY_PATH": str(folder)})
