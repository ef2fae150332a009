"""Builds the device of ``device.cpp`` for the installed torch, and tells how to run programs on it."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import torch

from tests.built_device import DoesNotFitError, built_once
from tests.checkout import ROOT
from tests.other_device.device import LIBRARY_VARIABLE

SOURCE = Path(__file__).parent / "device.cpp"

_LIBRARY = "libplain.so"


def build_once(cache: Path) -> Path:
    """The folder in ``cache`` with the library, built if need be. Raises DoesNotFitError."""
    build = f"{torch.__version__} {torch.version.git_version}".encode()
    folder = cache / f"plain-{hashlib.sha256(build + SOURCE.read_bytes()).hexdigest()[:16]}"
    return built_once(
        folder, lambda built: _compile(built / _LIBRARY), "plain = tests.other_device.device:load"
    )


def environment(folder: Path, base: Mapping[str, str]) -> dict[str, str]:
    """``base`` for programs that find the device."""
    paths = filter(None, [str(folder), base.get("PYTHONPATH"), str(ROOT)])
    return {**base, "PYTHONPATH": os.pathsep.join(paths), LIBRARY_VARIABLE: str(folder / _LIBRARY)}


def _compile(library: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise DoesNotFitError("no C++ compiler")
    own = Path(torch.__file__).parent
    includes = [f"-I{own / 'include'}", f"-I{own / 'include/torch/csrc/api/include'}"]
    linked = [f"-L{own / 'lib'}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{own / 'lib'}"]
    command = [compiler, "-std=c++20", "-O0", "-fPIC", "-shared", *includes, str(SOURCE), "-o", str(library)]
    done = subprocess.run([*command, *linked], capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if " error: " in line]
        raise DoesNotFitError(f"torch {torch.__version__} does not fit: {''.join(errors[:1])[-300:]}")
