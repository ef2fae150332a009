"""Devices for tests, compiled once for the installed torch and kept in pytest's cache."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest


class DoesNotFitError(Exception):
    """The device cannot be had here; the message says why."""


def built_once(folder: Path, build: Callable[[Path], object], entry_point: str) -> Path:
    """``folder``, into which ``build`` puts a device, once. Raises DoesNotFitError.

    torch loads ``entry_point`` at the end of its import, in every process that has the folder on its path.
    """
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="building-") as name:
        built, backend = Path(name, "built"), entry_point.partition(" ")[0]
        described = built / f"{backend}-1.0.dist-info"
        described.mkdir(parents=True)
        (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {backend}\nVersion: 1.0\n")
        (described / "entry_points.txt").write_text(f"[torch.backends]\n{entry_point}\n")
        build(built)
        try:
            built.rename(folder)  # whole or not at all: others may be building it, too
        except OSError:
            if not folder.exists():
                raise
    return folder


def device_folder(
    name: str, build_once: Callable[[Path], Path]
) -> Callable[[pytest.FixtureRequest, pytest.TempPathFactory], Path]:
    """A fixture: the folder that a device was built into, kept in pytest's cache for the next time."""

    @pytest.fixture(scope="session")
    def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
        cache = getattr(request.config, "cache", None)
        try:
            return build_once(tmp_path_factory.mktemp(name) if cache is None else cache.mkdir(name))
        except DoesNotFitError as error:
            pytest.skip(f"no {name}: {error}")

    return folder
