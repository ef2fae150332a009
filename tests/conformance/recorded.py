"""A run as anyone can see it from outside: its socket, the lines of its journal, its exported table."""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from amptui.cli import main
from amptui.records.run import FORM
from amptui.runs.socket_place import connect

Request = Mapping[str, Any]
"""What is asked and its fields: ``{"request": "precision", "precision": "bf16"}``."""

ANSWERS = ("RequestTaken", "RequestRefused")


class Screen:
    """What a screen says and hears, as lines of JSON."""

    def __init__(self, folder: Path) -> None:
        self._connection = connect(folder)
        self._lines = self._connection.makefile("rwb")
        self._numbers = count(1)
        self._send({"type": "Hello", "protocol": FORM})
        self.wait_for(lambda line: line["type"] == "History")

    def ask(self, request: Request) -> int:
        """Make a request; its number, when the run has heard it."""
        number, fields = next(self._numbers), {**request}
        self._send({"type": "RequestMade", "number": number, "kind": fields.pop("request"), **fields})
        self.wait_for(lambda line: line.get("type") == "RequestMade" and line["number"] == number)
        return number

    def answer(self, request: Request) -> Mapping[str, Any]:
        """Make a request; the line that says what became of it."""
        number = self.ask(request)
        return self.wait_for(
            lambda line: line.get("type") in ANSWERS and line["request"]["number"] == number,
        )

    def wait_for(self, wanted: Callable[[Mapping[str, Any]], object]) -> Mapping[str, Any]:
        """Read until there is such a line."""
        while not wanted(line := json.loads(self._lines.readline())):
            pass
        return line  # type: ignore[no-any-return]

    def close(self) -> None:
        self._lines.close()
        self._connection.close()

    def _send(self, line: Request) -> None:
        self._lines.write(json.dumps(line).encode() + b"\n")
        self._lines.flush()


class Asking:
    def __init__(self, runs: Path, requests: Mapping[int, Sequence[Request]]) -> None:
        self._runs, self._requests = runs, requests
        self._screen: Screen | None = None

    def __call__(self, step: int) -> None:
        for request in self._requests.get(step, ()):
            if self._screen is None:
                (folder,) = self._runs.iterdir()
                self._screen = Screen(folder)
            self._screen.ask(request)

    def close(self) -> None:
        if self._screen is not None:
            self._screen.close()


class Recorded:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["type"] == kind]

    def table(self) -> list[dict[str, str]]:
        path = self.folder.with_suffix(".csv")
        assert main(["export", str(self.folder), "--csv", str(path)]) == 0
        with path.open() as file:
            rows = list(csv.DictReader(file))
        path.unlink()
        return rows


def only_run(runs: Path) -> Recorded:
    (folder,) = runs.iterdir()
    return Recorded(folder)
