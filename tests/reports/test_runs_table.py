"""`amptui runs`: every kept run in a line that fits, or in JSON; a name is never more than text."""

import io
import json
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import pytest

from amptui.recipe.request import PAGE_RUNS
from amptui.records.run import Record, RunFailed, RunFinished
from amptui.reports.runs_table import list_runs
from amptui.runs.find import find_run
from amptui.runs.lock import RunLock
from amptui.runs.rundir import RunDir, default_base
from tests.builders import write_journal
from tests.golden import Goldens
from tests.opened import opened_files
from tests.telemetry.record_samples import run, step

NOW = 1_800_000_000.0


@pytest.fixture(autouse=True)
def _fixed_clock() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: NOW)
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


class Terminal(io.StringIO):
    """Standard output as a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def kept(name: str, records: Sequence[Record], *, age_seconds: float = 0.0) -> RunDir:
    run_dir = RunDir(write_journal(default_base() / name, records))
    os.utime(run_dir.journal_path, (NOW - age_seconds, NOW - age_seconds))
    return run_dir


def shown(*, columns: int | None = None) -> list[str]:
    out = io.StringIO() if columns is None else Terminal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns or 0))
        assert list_runs(json=False, out=out) == 0
    return out.getvalue().splitlines()


def three_runs() -> RunDir:
    """One that is trained, one that is done, one that failed; the first."""
    began = run(time=NOW - 7200)
    kept(
        "resnet50-20270115-080000",
        [began, RunFailed(time=0.0, step=0, error="no", traceback="")],
        age_seconds=3 * 86400,
    )
    done = RunFinished(time=0.0, steps=2340, seconds=1.0, reason="done")
    kept("mnist-deep-20270115-060000", [began, step(2340, precision="bf16"), done], age_seconds=7000)
    # Dated ahead, so that it is written now however slow this machine is.
    return kept("mnist-deep-20270115-070000", [began, step(117, precision="fp16", time=NOW)], age_seconds=-60)


def test_a_table_says_of_each_run_what_it_is_and_how_it_stands(goldens: Goldens) -> None:
    """In a pipe, and on terminals of some widths: what a person needs most stays."""
    kept("長い名前" * 10, [run(), step(1)], age_seconds=4 * 86400)
    kept("m-beyond-its-goal", [run(total_steps=10), step(25)], age_seconds=5 * 86400)
    tables = {}
    live = three_runs()
    with RunLock.take(live.path):
        live.lock_path.write_text(json.dumps({"pid": 4242, "host": socket.gethostname(), "started": 0.5}))
        tables["a pipe"] = shown()
        for columns in (200, 100, 80, 60, 40, 20, 10):
            tables[f"{columns} columns"] = lines = shown(columns=columns)
            assert max(len(line) + sum(ord(each) > 0x2E80 for each in line) for line in lines) <= columns
    text = "\n".join(line for name, lines in tables.items() for line in (f"== {name}", *lines))
    goldens.check("reports/runs", text)
    assert {len(lines) for lines in tables.values()} == {6}
    assert shown(columns=80)[1].split()[:2] == ["mnist-deep-20270115-070000", "died"]


def test_a_run_of_another_machine_is_told_with_its_name() -> None:
    run_dir = kept("m", [run(), step(1)])
    with RunLock.take(run_dir.path):
        run_dir.lock_path.write_text(json.dumps({"pid": 5, "host": "gpu7\x1b[2J", "started": 0.5}))
        assert "running on gpu7?[2J" in shown(columns=80)[1]


def test_json_is_one_object_a_run_and_nothing_without_one(goldens: Goldens) -> None:
    out = io.StringIO()
    list_runs(json=True, out=out)
    assert out.getvalue() == ""
    three_runs()
    list_runs(json=True, out=out)
    goldens.check("reports/runs json", out.getvalue().replace(str(default_base()), "RUNS"))


MANY = 120


@pytest.fixture
def many() -> list[str]:
    """The names of many runs, the newest first."""
    names = [f"model-{number:03}" for number in range(MANY)]
    for age, name in enumerate(names):
        kept(name, [run()], age_seconds=float(age))
    return names


@pytest.mark.ci
def test_a_reader_that_is_gone_ends_the_list_quietly(many: list[str]) -> None:
    for reader in ("head -1", "true"):
        command = f"{shlex.quote(sys.executable)} -m amptui runs --all | {reader}"
        done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.startswith(b"run ") == (reader == "head -1")


@pytest.mark.parametrize("json", [False, True])
def test_a_pipe_gets_the_newest_hundred_and_is_told_of_the_rest(
    json: bool, many: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = io.StringIO()
    with opened_files() as opened:
        list_runs(json=json, out=out)
    base = default_base()
    folders = {path.relative_to(base).parts[0] for path in opened if base in path.parents}
    assert folders == set(many[:PAGE_RUNS])
    assert len(out.getvalue().splitlines()) == PAGE_RUNS + (not json)
    more = f"{MANY - PAGE_RUNS} older runs: use `--all` or `--limit N`"
    assert capsys.readouterr().err == f"amptui: {more}\n"


def test_a_run_that_writes_no_journal_yet_is_on_the_first_page(many: list[str]) -> None:
    starting = RunDir(default_base() / "starting")
    starting.path.mkdir()
    starting.write_run_json({"model": "m"})
    os.utime(starting.path, (NOW + 1, NOW + 1))
    with RunLock.take(starting.path):
        os.utime(starting.path, (NOW + 1, NOW + 1))
        assert shown()[1].split()[:2] == ["starting", "starting"]
    assert find_run("").parent.name == many[0], "there is nothing to replay in it"
