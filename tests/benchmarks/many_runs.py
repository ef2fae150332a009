"""What it costs to list runs and to find the newest among 20,000: processor seconds of whole commands.

    python -m tests.benchmarks.many_runs [--runs N] [--beside CHECKOUT]

Makes so many folders with small journals in a temporary folder, one of them of a live run, and takes the
least of three times, which other programs disturbed least. CHECKOUT is another version of amptui to compare.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from amptui.records import codec
from amptui.records.run import Record, RunFinished
from amptui.runs.lock import RunLock
from amptui.runs.rundir import RunDir
from tests.benchmarks.figures import columns
from tests.checkout import ROOT
from tests.telemetry.record_samples import run, steps

_RUNS = 20_000

_TURNS = 3

_FIND = "import amptui.cli; from amptui.runs.find import find_run, live_run;"

COMMANDS: Mapping[str, str] = {
    "nothing: Python and the imports": _FIND,
    "runs": "import sys; from amptui.cli import main; sys.exit(main(['runs']))",
    "runs --json": "import sys; from amptui.cli import main; sys.exit(main(['runs', '--json']))",
    "runs --all": "import sys; from amptui.cli import main; sys.exit(main(['runs', '--all']))",
    "replay, export: find the newest": f"{_FIND} find_run('')",
    "attach: find the live run": f"{_FIND} live_run('')",
    "attach MODEL: find the live run": f"{_FIND} live_run('mnist-deep')",
}
"""What is measured; the screen that `attach` and `replay` then open is not."""


def main() -> None:
    """Measure as the command line says and print a table."""
    parser = argparse.ArgumentParser(description="Measure how long runs are listed and found.")
    parser.add_argument("--runs", metavar="N", type=int, default=_RUNS)
    parser.add_argument("--beside", metavar="CHECKOUT", type=Path, help="another version of amptui")
    options = parser.parse_args()
    with TemporaryDirectory(prefix="amptui-runs-") as state:
        live = make_runs(Path(state) / "amptui" / "runs", options.runs)
        with RunLock.take(live.path):
            print(table(Path(state), [ROOT, *filter(None, [options.beside])]))


def make_runs(base: Path, number: int) -> RunDir:
    """So many runs in ``base``, one written each minute; return the newest, the only one without an end."""
    records: list[Record] = [run(), *steps(1, 10)]
    end = RunFinished(time=1000.0, steps=10, seconds=5.0, reason="done")
    now = time.time()
    for minutes in reversed(range(number)):
        written = now - 60 * minutes
        run_dir = RunDir(base / time.strftime("mnist-deep-%Y%m%d-%H%M%S", time.gmtime(written)))
        run_dir.path.mkdir(parents=True)
        run_dir.run_json_path.write_text(json.dumps({"model": "mnist-deep", "started": written}))
        run_dir.lock_path.touch()
        lines = [codec.dumps(record) for record in ([*records, end] if minutes else records)]
        run_dir.journal_path.write_text("\n".join([*lines, ""]))
        os.utime(run_dir.journal_path, (written, written))
    return run_dir


def table(state: Path, checkouts: list[Path]) -> str:
    """One line for each command, with a column for each version of amptui."""
    rows = [("", *(f"CPU s, {checkout}" for checkout in checkouts))]
    for name, program in COMMANDS.items():
        rows.append((name, *(_least_seconds(program, state, checkout) for checkout in checkouts)))
    return columns(rows)


def _least_seconds(program: str, state: Path, checkout: Path) -> str:
    return f"{min(cpu_seconds(program, state, checkout) for _ in range(_TURNS)):.2f}"


def cpu_seconds(program: str, state: Path, checkout: Path) -> float:
    """What a process that runs ``program`` uses of the processor, in user and kernel together."""
    # The safe path keeps Python from looking in the working folder before all others.
    paths = {"PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1", "XDG_STATE_HOME": str(state)}
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | paths, capture_output=True, check=False
    )
    after = os.times()
    # A version without an option ends with a usage error, whose time says nothing.
    if done.returncode:
        return float("nan")
    return sum(after[2:4]) - sum(before[2:4])


if __name__ == "__main__":
    main()
