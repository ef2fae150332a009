"""Which files this process opens: heard from Python itself."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_LISTENING: list[list[Path]] = []


@contextmanager
def opened_files() -> Iterator[list[Path]]:
    """As they are called within the block: a name alone is one in a folder that was open already."""
    paths: list[Path] = []
    _LISTENING.append(paths)
    yield paths
    _LISTENING.pop()


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str):
        for paths in _LISTENING:
            paths.append(Path(arguments[0]))


sys.addaudithook(_hear)  # for good: it cannot be taken back
