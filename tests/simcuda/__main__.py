"""Runs a program on the pretended GPU: ``python -m tests.simcuda pytest -m gpu tests/loops``."""

import os
import sys

from tests.checkout import ROOT
from tests.simcuda.build import build_once, environment


def main(command: list[str]) -> None:
    """Become the program; ``pytest`` is run as the tests run it."""
    folder = build_once(ROOT / ".pytest_cache" / "d" / "simcuda")  # where pytest keeps it
    if command[0] == "pytest":
        plugin = ("-p", "no:cacheprovider", "-p", "tests.simcuda.plugin")
        command = [sys.executable, "-m", "pytest", *plugin, *command[1:]]
    devices = os.environ.get("SIMCUDA_DEVICES", "2")
    os.execvpe(command[0], command, environment(folder, devices=devices))  # noqa: S606 - that is what it is for


if __name__ == "__main__":
    main(sys.argv[1:])
