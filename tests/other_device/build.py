"""Builds the device of ``device.cpp`` for the installed torch, and tells how to run programs on it."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch

from tests.checkout import ROOT
from tests.other_device.device import LIBRARY_VARIABLE

SOURCE = Path(__file__).parent / "device.cpp"

_LIBRARY = "libplain.so"

_ENTRY_POINT = """\
[torch.backends]
plain = tests.other_device.device:load
"""


class DoesNotFitError(Exception):
    """The device cannot be had here; the message says why."""


def build_once(cache: Path) -> Path:
    """The folder in ``cache`` with the library, built if need be. Raises DoesNotFitError."""
    build = f"{torch.__version__} {torch.version.git_version} {_ENTRY_POINT}".encode()
    folder = cache / f"plain-{hashlib.sha256(build + SOURCE.read_bytes()).hexdigest()[:16]}"
    if folder.exists():
        return folder
    with tempfile.TemporaryDirectory(dir=cache, prefix="building-") as name:
        built = Path(name, "built")
        built.mkdir()
        _compile(built / _LIBRARY)
        described = built / "plain-1.0.dist-info"
        described.mkdir()
        (described / "METADATA").write_text("Metadata-Version: 2.1\nName: plain\nVersion: 1.0\n")
        (described / "entry_points.txt").write_text(_ENTRY_POINT)
        try:
            built.rename(folder)  # whole or not at all: others may be building it, too
        except OSError:
            if not folder.exists():
                raise
    return folder


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
