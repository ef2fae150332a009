"""A lab's time is limited, failures are told, and nothing that it started outlives it."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.benchmarks.lab import OutOfTimeError, last_line, open_lab
from tests.checkout import ROOT
from tests.living import run_pid, wait_until


@pytest.mark.ci
def test_a_lab_has_an_end_and_tells_what_failed() -> None:
    with open_lab(0) as lab, pytest.raises(OutOfTimeError):
        lab.limit_seconds()
    with open_lab(60) as lab:
        done = lab.run([sys.executable, "-c", "import sys; print(1); sys.exit('no kernel image')"])
        with pytest.raises(RuntimeError, match=r"exit status 1 .*no kernel image"):
            last_line(done)
        assert last_line(lab.run([sys.executable, "-c", "print(1); print(2)"])) == "2"
        with pytest.raises(subprocess.TimeoutExpired):
            replace(lab, deadline=time.monotonic() + 0.2).run(["sleep", "60"])


def test_a_child_answers_line_by_line_and_its_end_is_told_with_its_complaints() -> None:
    program = "import sys; print('ready', flush=True); input(); print(7, flush=True); sys.exit('worn out')"
    with open_lab(60) as lab, lab.talk([sys.executable, "-c", program], {}) as ask:
        assert ask() == "7\n"
        with pytest.raises(RuntimeError, match="worn out"):
            ask()


def is_running(pid: int) -> bool:
    """Whether that process can still do anything: who has to reap it may take its time."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


_DETACH = """
import subprocess, sys, time
from tests.benchmarks.lab import open_lab
with open_lab(60) as lab:
    child = subprocess.Popen(["sleep", "600"], env=lab.environment, start_new_session=True)
    print(child.pid, lab.folder, flush=True)
    if sys.argv[1:]:
        time.sleep(600)
"""


@pytest.mark.parametrize("number", [None, signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_what_a_lab_started_ends_with_it_however_it_ends(number: signal.Signals | None) -> None:
    stay = [] if number is None else ["stay"]
    with subprocess.Popen(
        [sys.executable, "-c", _DETACH, *stay],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        pid, folder = process.stdout.readline().rstrip("\n").split(" ", 1)
        if number is not None:
            process.send_signal(number)
        wait_until(lambda: not Path(folder).exists(), "the lab's folder is still there")
    assert not is_running(int(pid))


@pytest.mark.ci
def test_a_killed_benchmark_leaves_no_training_behind(tmp_path: Path) -> None:
    benchmark = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.overhead", "--quick", "--only", "launch_bound"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with benchmark:
        found = wait_until(
            lambda: [*filter(None, map(run_pid, tmp_path.glob("amptui-lab-*/app-*/run")))],
            "the app does not train",
            seconds=150,
        )
        benchmark.kill()
    wait_until(lambda: not any(tmp_path.glob("amptui-lab-*")), "the lab's folder is still there")
    assert not any(map(is_running, found))
