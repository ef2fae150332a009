"""The files of a run's folder: new ones are for this user alone, replaced ones change as a whole.

A folder of another user is refused where it is created, found or resumed: in one's own, links are one's own.
"""

import os
from contextlib import suppress
from pathlib import Path

FILE_MODE = 0o600
"""Mode of new files in a run's folder."""

FOLDER_MODE = 0o700


def is_another_users(path: Path) -> bool:
    """Whether neither this user nor root owns ``path``; root may use everybody's. Raises OSError."""
    return os.geteuid() != 0 and path.stat().st_uid not in (0, os.geteuid())


def open_file(path: Path | str, flags: int) -> int:
    """Open ``path`` with ``flags`` and return its descriptor. Raises OSError."""
    return os.open(path, flags, FILE_MODE)


def open_new(path: Path) -> int:
    """Create an empty file at ``path`` for reading and appending, and return its descriptor.

    An existing file of that name, left by a killed process, or a link is removed first. Raises OSError.
    """
    path.unlink(missing_ok=True)
    return open_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL)


def temporary_beside(path: Path) -> Path:
    """A name in the folder of ``path`` that no other process takes, on any machine, and nobody foresees."""
    return path.with_name(f".amptui-{os.urandom(8).hex()}.tmp")


def replace_text(path: Path, text: str) -> None:
    """Write ``path`` as a whole or not at all: readers see the old file or the new one. Raises OSError."""
    temporary = temporary_beside(path)
    try:
        with os.fdopen(open_new(temporary), "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


def sync_folder(path: Path) -> None:
    """Put the names in ``path`` on the disk: some file systems otherwise lose a new one in a crash.

    Others cannot sync a folder; they are left alone.
    """
    with suppress(OSError):
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def names_in(path: Path) -> list[str]:
    """The names in the folder ``path``; empty if it cannot be read."""
    try:
        return [entry.name for entry in path.iterdir()]
    except OSError:
        return []
