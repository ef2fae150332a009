"""Looks at folders that may be on a file system that never answers, and waits for none of them for long."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

_T = TypeVar("_T")

PATIENCE_SECONDS = 1.0
"""A file system that takes longer for one folder is left alone until it answers. A busy one takes less."""


class FolderProbe:
    """Looks at folders in threads, and remembers which file systems have not answered yet.

    A call into a dead network file system cannot be interrupted: its thread is abandoned. Folders beside the
    one that it waits for are not looked at meanwhile, so that a dead file system costs one thread for each
    folder of runs on it. Used by one thread at a time.
    """

    def __init__(self) -> None:
        self._stuck: dict[str, threading.Thread] = {}
        """By the folder around what it waits for."""

    def look(
        self, folders: Sequence[str], at: Callable[[str], _T], *, patience_seconds: float = PATIENCE_SECONDS
    ) -> dict[str, _T]:
        """What ``at`` returns for each folder, in their order; those that do not answer are left out.

        ``at`` is called in a thread, and may not raise.
        """
        self._stuck = {place: waits for place, waits in self._stuck.items() if waits.is_alive()}
        answers: dict[str, _T] = {}
        left = self._answering(folders)
        while left:
            looks = _Pass(left, at)
            looks.start()
            stuck = looks.wait(patience_seconds)
            answers |= looks.answers
            if stuck is None:
                break
            self._stuck[os.path.dirname(stuck)] = looks  # noqa: PTH120 - it is text
            left = self._answering(left[left.index(stuck) + 1 :])
        return answers

    def _answering(self, folders: Sequence[str]) -> list[str]:
        if not self._stuck:
            return list(folders)
        return [folder for folder in folders if os.path.dirname(folder) not in self._stuck]  # noqa: PTH120


class _Pass(threading.Thread, Generic[_T]):
    """One look at some folders, one after the other."""

    def __init__(self, folders: Sequence[str], at: Callable[[str], _T]) -> None:
        super().__init__(name="amptui-folders", daemon=True)
        self._folders = folders
        self._at = at
        self._current = folders[0], time.monotonic()
        self._is_abandoned = False
        self._done = threading.Event()
        self.answers: dict[str, _T] = {}

    def run(self) -> None:
        """Look at all, unless somebody else goes on meanwhile."""
        try:
            for folder in self._folders:
                self._current = folder, time.monotonic()
                answer = self._at(folder)
                if self._is_abandoned:
                    return
                self.answers[folder] = answer
        finally:
            self._done.set()

    def wait(self, patience_seconds: float) -> str | None:
        """Wait until all are looked at; the folder that has not answered in time, if there is one."""
        while True:
            folder, began = self._current
            if self._done.wait(max(0.0, began + patience_seconds - time.monotonic())):
                self.join()
                return None
            if self._current == (folder, began):
                self._is_abandoned = True
                return folder
