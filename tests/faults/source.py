"""The near end of `tests.faults.lives`: starts processes of `amptui` and learns how they ended."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Lives:
    """Starts `amptui` again and again from a process that has torch loaded; what it says goes to ``log``."""

    def __init__(self, log: Path) -> None:
        with log.open("w") as said:
            self._source = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.lives"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                cwd=ROOT,
            )
        self.log = log

    def start(self, *arguments: str) -> int:
        """Begin a life; its process's number."""
        return int(self._ask(json.dumps(arguments)))

    def end_of(self, pid: int) -> int:
        """Wait for a life to end; its exit status, negative for a signal."""
        return int(self._ask(json.dumps({"wait": pid})))

    def close(self) -> None:
        """No more lives."""
        self._source.communicate(timeout=30)

    def _ask(self, line: str) -> str:
        assert self._source.stdin is not None
        assert self._source.stdout is not None
        self._source.stdin.write(f"{line}\n")
        self._source.stdin.flush()
        return self._source.stdout.readline()
