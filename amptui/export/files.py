"""Files that appear whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from amptui.errors import AmptuiError
from amptui.runs.rundir import reason


@contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """A path beside ``out`` to write to, which takes its place at the end; after an error nothing is left.

    Folders on the way are made. Raises ``AmptuiError`` where the system refuses, or where ``out`` is
    something else than a file.
    """
    with writing(out):
        place = out.resolve()
        if place.exists() and not place.is_file():
            raise AmptuiError(f"cannot write {out}: it is not a file", mend=_MEND)
        place.parent.mkdir(parents=True, exist_ok=True)
    # Without the name in it: TensorBoard reads whatever has "tfevents" in its name.
    beside = place.with_name(f".amptui-{os.getpid()}-{hash(place.name)}.tmp")
    with writing(out):
        _make(beside)
    try:
        yield beside
        with writing(out):
            beside.replace(place)
    finally:
        with suppress(OSError):
            beside.unlink()


def _make(path: Path) -> None:
    """A new, empty file: in a folder of many users, /tmp say, another one's link could wait there."""
    path.unlink(missing_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """What the system refuses within becomes an ``AmptuiError`` that names ``out``."""
    try:
        yield
    except OSError as error:
        raise AmptuiError(f"cannot write {out}: {reason(error)}", mend=_MEND) from error


_MEND = "choose another place, or make room there"
