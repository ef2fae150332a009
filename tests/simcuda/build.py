"""Builds the pretended GPU against the torch that is installed, and tells how to run programs on it."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from tests.built_device import DoesNotFitError, built_once
from tests.checkout import ROOT
from tests.simcuda.device import KERNELS, NCCL, RUNTIME

SOURCES = Path(__file__).parent / "src"

DRIVER = "libcuda.so.1"

FITTING_TORCH = ("2.9", "2.14")
FITTING_GCC = range(11, 15)
"""What it is known to work with: there it must, elsewhere it may."""

_OBJECTS = ("kernels", "nccl", "clock", "memory", "device", "driver")
"""The one that takes longest first."""

_FLAGS = ("-std=c++20", "-O1", "-fPIC")


def build_once(cache: Path) -> Path:
    """The folder in ``cache`` with the libraries for this torch and these sources, built if need be.

    Raises DoesNotFitError where there is no compiler, no torch for CUDA, or one that it does not fit.
    """

    def build(folder: Path) -> None:
        _build(folder)
        _check(folder)

    return built_once(cache / f"simcuda-{_key()}", build, "simcuda = tests.simcuda.device:load")


def environment(folder: Path, base: Mapping[str, str] = os.environ, **settings: object) -> dict[str, str]:
    """``base`` for programs on the pretended GPU that lies in ``folder``.

    ``settings`` are its variables without their prefix, in lower case: ``devices=2``.
    """

    def joined(first: Path | str, variable: str, *last: str) -> str:
        return os.pathsep.join(filter(None, [str(first), base.get(variable), *last]))

    chosen = {f"SIMCUDA_{name.upper()}": str(value) for name, value in settings.items()}
    preloaded = [str(folder / name) for name in (RUNTIME, NCCL) if (folder / name).exists()]
    paths = {
        "LD_PRELOAD": joined(os.pathsep.join(preloaded), "LD_PRELOAD"),
        "LD_LIBRARY_PATH": joined(folder, "LD_LIBRARY_PATH"),
        # Where torch finds the entry point, and that finds this folder.
        "PYTHONPATH": joined(folder, "PYTHONPATH", str(ROOT)),
    }
    # Operators that torch writes in Triton would be compiled for the device.
    return {**base, **paths, **chosen, "TORCH_DISABLE_NATIVE_JIT": "1"}


def _key() -> str:
    build = f"{torch.__version__} {torch.version.git_version} {_FLAGS} {nccl_headers()}"
    digest = hashlib.sha256(build.encode())
    for source in sorted([*SOURCES.rglob("*.*"), Path(__file__)]):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _build(folder: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise DoesNotFitError("no C++ compiler")
    own, nccl = Path(torch.__file__).parent, nccl_headers()
    includes = [own / "include", own / "include/torch/csrc/api/include", _cuda_headers(_cuda_major())]
    names = [name for name in _OBJECTS if name != "nccl"] if nccl is None else list(_OBJECTS)
    includes += [] if nccl is None else [nccl]
    flags = [*_FLAGS, *(f"-I{path}" for path in includes), f"-idirafter{SOURCES}"]

    def compiled(name: str) -> None:
        _run([compiler, *flags, "-c", str(SOURCES / f"{name}.cpp"), "-o", str(folder / f"{name}.o")])

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(compiled, names))
    objects = {name: str(folder / f"{name}.o") for name in names}
    link = [compiler, "-shared", "-o"]
    _run([*link, str(folder / DRIVER), objects["driver"], f"-Wl,-soname,{DRIVER}"])
    runtime = [objects[name] for name in ("clock", "memory", "device")]
    _run([*link, str(folder / RUNTIME), *runtime, f"-Wl,-soname,{RUNTIME}", "-ldl", "-lpthread"])
    libraries = ["-lc10", "-ltorch_cpu", "-lc10_cuda", "-ltorch_cuda", "-lsimcudart"]
    places = [f"-L{own / 'lib'}", f"-L{folder}", f"-Wl,-rpath,{own / 'lib'}", "-Wl,-rpath,$ORIGIN"]
    _run([*link, str(folder / KERNELS), objects["kernels"], *places, *libraries])
    if nccl is not None:
        _run([*link, str(folder / NCCL), objects["nccl"], f"-L{folder}", "-Wl,-rpath,$ORIGIN", "-lsimcudart"])
    for each in objects.values():
        Path(each).unlink()


def _gcc() -> int:
    if shutil.which("g++") is None:
        return 0
    said = subprocess.run(["g++", "-dumpversion"], capture_output=True, text=True, check=True).stdout
    return int(said.partition(".")[0])


def _cuda_major() -> str:
    if torch.version.cuda is None:
        raise DoesNotFitError(f"torch {torch.__version__} was built without CUDA")
    return torch.version.cuda.partition(".")[0]


def _cuda_headers(major: str) -> Path:
    """CUDA's headers of that version: those that torch's wheels bring, or an installed CUDA's."""
    places = [path / inner / "include" for path in _wheels() for inner in (f"cu{major}", "cuda_runtime")]
    installed = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    for place in (*places, Path(installed, "include")):
        header = place / "cuda_runtime_api.h"
        if header.exists() and f"CUDART_VERSION {major}" in " ".join(header.read_text().split()):
            return place
    raise DoesNotFitError(f"no headers of CUDA {major}")


def nccl_headers() -> Path | None:
    """NCCL's headers that torch's wheels bring; None where they bring none, or torch has no NCCL."""
    places = [path / "nccl" / "include" for path in _wheels()]
    usable = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    return next((place for place in places if usable and (place / "nccl.h").exists()), None)


def _wheels() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    return [Path(path) for path in (spec.submodule_search_locations or ())] if spec else []


def _check(folder: Path) -> None:
    program = "import torch; x = torch.ones(3, device='cuda'); assert (x + 1).sum().item() == 6"
    _run([sys.executable, "-c", program], environment(folder))


def _run(command: Sequence[str], env: dict[str, str] | None = None) -> None:
    """Run a step of the build. Raises DoesNotFitError unless it must work with this torch and compiler."""
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if done.returncode == 0:
        return
    said = done.stderr.strip()
    if torch.__version__.startswith(tuple(f"{fits}." for fits in FITTING_TORCH)) and _gcc() in FITTING_GCC:
        raise RuntimeError(f"{' '.join(command)}\nended with {done.returncode}:\n{said[-4000:]}")
    last = said.splitlines()[-1] if said else f"{command[0]} ended with {done.returncode}"
    raise DoesNotFitError(f"torch {torch.__version__} does not fit: {last[:300]}")
