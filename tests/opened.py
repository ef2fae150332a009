"""Which files this process opens, and how: heard from Python itself."""

import sys
from pathlib import Path
from typing import Any, ClassVar


class Opened:
    """The files that are opened while this is entered, each with the flags of its opening."""

    _listening: ClassVar["Opened | None"] = None
    _hears: ClassVar[bool] = False

    def __init__(self) -> None:
        self.files: list[tuple[Path, int]] = []
        """As they were called: a name alone is one in a folder that was open already."""

    def __enter__(self) -> "Opened":
        if not Opened._hears:
            Opened._hears = True
            sys.addaudithook(_hear)  # for good: it cannot be taken back
        Opened._listening = self
        return self

    def __exit__(self, *_: object) -> None:
        Opened._listening = None

    def in_folders_of(self, base: Path) -> set[str]:
        """The names of the folders in ``base`` of which something was opened."""
        paths = [path.relative_to(base) for path, _ in self.files if path.is_relative_to(base)]
        return {path.parts[0] for path in paths if path.parts}


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and Opened._listening is not None and isinstance(arguments[0], str):
        Opened._listening.files.append((Path(arguments[0]), arguments[2]))
