"""A machine with make-believe NVIDIA GPUs: builds the tests' NVML library and the environment to run with it.

``device/fake_nvml.c`` tells what can be set and which faults there are.
"""

import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parent / "device" / "fake_nvml.c"


def build(folder: Path, *, old_driver: bool = False) -> Path | None:
    """Compile ``libnvidia-ml.so.1`` into ``folder`` and return that; None where there is no C compiler.

    The folder goes into ``LD_LIBRARY_PATH`` of a new process: the loader reads it once, at the start.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    options = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    driver = ["-DOLD_DRIVER"] if old_driver else []
    library = str(folder / "libnvidia-ml.so.1")
    subprocess.run([compiler, *options, *driver, "-o", library, str(SOURCE)], check=True)
    return folder


def environment(folder: Path | None, **settings: str) -> dict[str, str]:
    """This process's environment with the library of ``folder``, or none at all, in reach.

    ``settings`` are the source's variables without their prefix, in lower case: ``gpus="1"``.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FAKE_NVML_")}
    chosen = {f"FAKE_NVML_{name.upper()}": value for name, value in settings.items()}
    return kept | chosen | ({} if folder is None else {"LD_LIBRARY_PATH": str(folder)})
