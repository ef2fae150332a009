"""The folders that training reads and writes: runs, data sets, and the room left for them."""

import shutil
import tempfile
from pathlib import Path

from amptui.doctor.check import Check, broken, fine, poor
from amptui.units import number_of_bytes

_LEAST_FREE_BYTES = 2**30
"""A day of quick steps writes some hundred MB of journal; checkpoints of a large model take more."""


def storage_checks() -> list[Check]:
    """The folder of runs and the folder of data sets; nothing is left behind in either."""
    from amptui.launch import default_data_dir
    from amptui.runs.rundir import default_base

    runs, data = default_base(), default_data_dir()
    return [check_runs(runs), check_data_folder(data)]


def data_checks() -> list[Check]:
    """Which data sets are there already; nothing is downloaded, and no checksum is made."""
    from amptui.launch import default_data_dir

    folder = default_data_dir()
    return [check_mnist(folder), check_cifar10(folder)]


def check_runs(folder: Path) -> Check:
    """Whether runs can be kept in ``folder``, by writing a file there that vanishes."""
    why = why_unwritable(folder)
    if why:
        mend = "make it writable, set XDG_STATE_HOME, or train with --run-dir FOLDER"
        return broken("runs", f"runs cannot be kept in {folder}: {why}", mend, folder=str(folder))
    return _check_room(
        "runs", f"runs are kept in {folder}", folder, "free some, or train with --run-dir FOLDER"
    )


def check_data_folder(folder: Path) -> Check:
    """Whether data sets can be downloaded to ``folder``; without them synthetic data stands in."""
    why = why_unwritable(folder)
    if why:
        mend = "make it writable, set XDG_CACHE_HOME, or train with --data-dir FOLDER"
        return poor("data-folder", f"data sets cannot be kept in {folder}: {why}", mend, folder=str(folder))
    return _check_room(
        "data-folder", f"data sets are kept in {folder}", folder, "free some, or use --data-dir FOLDER"
    )


def why_unwritable(folder: Path) -> str:
    """Why no file can be made in ``folder``, or in what is there of the path to it; empty where one can.

    A real file says more than permission bits: of a full disk, a quota, a file system that is read-only.
    """
    try:
        with tempfile.TemporaryFile(dir=existing(folder)) as file:
            file.write(b"\0" * 4096)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def existing(folder: Path) -> Path:
    """``folder``, or the nearest above it that is there; raises OSError where that cannot be told."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def check_mnist(data_dir: Path) -> Check:
    """MNIST's four files, packed or not; an unpacked one must have its size."""
    from amptui.data.mnist import MNIST

    folder = data_dir / MNIST.folder
    missing, damaged = [], []
    for file in MNIST.files:
        path = folder / file.name
        if path.exists():
            damaged += [path] if path.stat().st_size != file.size_bytes else []
        elif not path.with_name(f"{file.name}.gz").exists():
            missing.append(file.name)
    if damaged:
        text = f"MNIST: {', '.join(path.name for path in damaged)} in {folder} is damaged"
        return poor(
            "mnist", text, "move it away to have it downloaded again", found=False, folder=str(folder)
        )
    return _check_found("mnist", "MNIST", folder, found=not missing, megabytes=12)


def check_cifar10(data_dir: Path) -> Check:
    """CIFAR-10's folder with every batch, or the archive that is unpacked in memory."""
    from amptui.data.cifar import CIFAR10

    folder = data_dir / CIFAR10.folder
    if folder.exists():
        names = (*CIFAR10.train, *CIFAR10.validation)
        missing = [name for name in names if not (folder / name).exists()]
        if missing:
            text = f"CIFAR-10: {', '.join(missing)} is missing in {folder}"
            return poor("cifar-10", text, "move the folder away to have it downloaded again", found=False)
        return _check_found("cifar-10", "CIFAR-10", folder, found=True, megabytes=170)
    archive = data_dir / CIFAR10.archive
    return _check_found("cifar-10", "CIFAR-10", archive, found=archive.exists(), megabytes=170)


def _check_found(name: str, title: str, path: Path, *, found: bool, megabytes: int) -> Check:
    if found:
        return fine(name, f"{title} is in {path}", found=True, folder=str(path))
    mend = (
        f"it is downloaded when first trained on ({megabytes} MB); without a network synthetic data stands in"
    )
    return poor(name, f"{title} is not here yet", mend, found=False, folder=str(path))


def _check_room(name: str, text: str, folder: Path, mend: str) -> Check:
    free = shutil.disk_usage(existing(folder)).free
    line = f"{text}, {number_of_bytes(free)} free"
    if free < _LEAST_FREE_BYTES:
        return poor(name, f"{line}: little", mend, folder=str(folder), free_bytes=free)
    return fine(name, line, folder=str(folder), free_bytes=free)
