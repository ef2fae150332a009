"""The folders that training reads and writes: runs, data sets, and their free space."""

import shutil
import tempfile
from pathlib import Path

from amptui.base.units import number_of_bytes
from amptui.reports.doctor.check import Check, broken, fine, poor

_MIN_FREE_BYTES = 2**30
"""A day of short steps writes a few hundred MB of journal; checkpoints of a large model take more."""


def storage_checks() -> list[Check]:
    """The folder of runs and the folder of data sets; leaves nothing behind in either."""
    from amptui.runs.rundir import default_base, default_data_dir

    runs, data = default_base(), default_data_dir()
    return [check_runs(runs), check_data_folder(data)]


def data_checks() -> list[Check]:
    """Which data sets are there already; downloads nothing."""
    from amptui.runs.rundir import default_data_dir

    folder = default_data_dir()
    return [check_mnist(folder), check_cifar10(folder)]


def check_runs(folder: Path) -> Check:
    """Whether runs can be saved in ``folder``, by writing a temporary file there."""
    why = why_unwritable(folder)
    if why:
        hint = "make the folder writable, set XDG_STATE_HOME, or train with --run-dir DIR"
        return broken("runs", f"cannot save runs in {folder}: {why}", hint, folder=str(folder))
    return _check_room("runs", "runs", folder, "free some space, or train with --run-dir DIR")


def check_data_folder(folder: Path) -> Check:
    """Whether data sets can be downloaded to ``folder``; without them training uses synthetic data."""
    why = why_unwritable(folder)
    if why:
        hint = "make the folder writable, set XDG_CACHE_HOME, or train with --data-dir DIR"
        return poor("data-folder", f"cannot save data sets in {folder}: {why}", hint, folder=str(folder))
    return _check_room("data-folder", "data sets", folder, "free some space, or train with --data-dir DIR")


def why_unwritable(folder: Path) -> str:
    """Why no file can be created in ``folder``, or in its nearest existing parent; empty if one can.

    A real file finds more than permission bits do: a full disk, a quota, a read-only file system.
    """
    try:
        with tempfile.TemporaryFile(dir=existing(folder)) as file:
            file.write(b"\0" * 4096)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def existing(folder: Path) -> Path:
    """``folder``, or its nearest existing parent; raises OSError if it cannot be determined."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def check_mnist(data_dir: Path) -> Check:
    """MNIST's four files, compressed or not."""
    from torchvision.datasets.utils import check_integrity

    from amptui.data.vision import DOWNLOAD_AGAIN, MNIST_FOLDER, MNIST_MD5

    folder = data_dir / MNIST_FOLDER
    there = [name for name in MNIST_MD5 if (folder / name).exists()]
    damaged = [name for name in there if not check_integrity(folder / name, MNIST_MD5[name])]
    if damaged:
        text = f"MNIST: {', '.join(damaged)} in {folder} is corrupt"
        return poor("mnist", text, DOWNLOAD_AGAIN, found=False, folder=str(folder))
    is_there = all(name in there or (folder / f"{name}.gz").exists() for name in MNIST_MD5)
    return _check_found("mnist", "MNIST", folder, is_there=is_there, megabytes=12)


def check_cifar10(data_dir: Path) -> Check:
    """CIFAR-10's folder with every batch, or its archive."""
    from torchvision.datasets import CIFAR10

    folder = data_dir / CIFAR10.base_folder
    if folder.exists():
        names = [name for name, _md5 in CIFAR10.train_list + CIFAR10.test_list]
        missing = [name for name in names if not (folder / name).exists()]
        if missing:
            text = f"CIFAR-10: {', '.join(missing)} is missing from {folder}"
            return poor("cifar-10", text, "delete or rename the folder to download it again", found=False)
        return _check_found("cifar-10", "CIFAR-10", folder, is_there=True, megabytes=170)
    archive = data_dir / CIFAR10.filename
    return _check_found("cifar-10", "CIFAR-10", archive, is_there=archive.exists(), megabytes=170)


def _check_found(name: str, title: str, path: Path, *, is_there: bool, megabytes: int) -> Check:
    if is_there:
        return fine(name, f"{title} is in {path}", found=True, folder=str(path))
    hint = f"the first run downloads it ({megabytes} MB); without a network it uses synthetic data"
    return poor(name, f"{title} is not downloaded yet", hint, found=False, folder=str(path))


def _check_room(name: str, what: str, folder: Path, hint: str) -> Check:
    free = shutil.disk_usage(existing(folder)).free
    text = f"{what} are saved in {folder}, {number_of_bytes(free)} free"
    if free < _MIN_FREE_BYTES:
        return poor(name, f"{text}: low", hint, folder=str(folder), free_bytes=free)
    return fine(name, text, folder=str(folder), free_bytes=free)
