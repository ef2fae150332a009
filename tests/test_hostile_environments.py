"""Whatever environment it is started in, a training trains, or says in one line why it cannot."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from amptui.base.errors import UsageError
from amptui.records.keeping import UNSAVED_STATUS
from tests.terminal import KNOBS
from tests.warm import WarmSource

STEPS = 3

ENVIRONMENTS: list[Mapping[str, str | None]] = [
    *({"HOME": value} for value in (None, "", "relative")),
    *({"XDG_STATE_HOME": value} for value in ("relative", "/dev/null", "/proc", "")),
    *({"XDG_CACHE_HOME": value} for value in ("relative", "/dev/null")),
    *({"TERM": value} for value in (None, "", "dumb", "\x1b[31m", "x" * 5000)),
    *({"COLUMNS": value, "LINES": value} for value in ("0", "-5", "abc", "100000")),
    *({"CUDA_VISIBLE_DEVICES": value} for value in ("", "garbage", "-1", "99")),
    *({"TZ": value} for value in ("garbage", ":/dev/null", "")),
    *({"PATH": value} for value in (None, "", "/dev/null")),
    *({"LC_ALL": value} for value in ("C", "xx_YY.bad", "")),
    {"TMPDIR": "/nonexistent"},
    {"USER": None, "LOGNAME": None, "SHELL": None},
    {"NO_COLOR": "1", "FORCE_COLOR": "1"},
    {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "SLURM_JOB_ID": "x"},
    {"X" * 1000: "y" * 100_000, "ODD": "\udcff\n\x1b[2J"},
]
"""What a command line reads of them when it runs; None: not there."""

AT_THE_START: list[Mapping[str, str | None]] = [
    *({"PYTHONIOENCODING": value} for value in ("ascii", "latin-1", "utf-16")),
    *({"PYTHONWARNINGS": value} for value in ("error", "always")),
    *({"OMP_NUM_THREADS": value} for value in ("0", "garbage", "64")),
    {"PYTHONUTF8": "0", "LC_ALL": "C"},
    {"PYTHONDEVMODE": "1"},
    {"PYTHONOPTIMIZE": "2"},
    {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"},
    {"PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1"},
]
"""What the interpreter and libraries read when a process starts."""

LIMITS = {
    "address space": (resource.RLIMIT_AS, 1_500_000_000),
    "file size": (resource.RLIMIT_FSIZE, 2_000),
    "files": (resource.RLIMIT_NOFILE, 40),
    "core": (resource.RLIMIT_CORE, 0),
    "stack": (resource.RLIMIT_STACK, 1 << 20),
}


def arguments(folder: Path, environment: Mapping[str, str | None]) -> list[str]:
    command = ["train", KNOBS, "--device", "cpu", "--headless", "--json", "--steps", str(STEPS)]
    # Where runs are kept is a matter of the environment too.
    where = (
        []
        if any(name.startswith(("HOME", "XDG")) for name in environment)
        else ["--run-dir", str(folder / "run")]
    )
    return [*command, "--set", "step_ms=0", *where]


def assert_sound(status: int, out: bytes, said: bytes) -> None:
    """It trained, or one line says why not, or what could not be saved; what it wrote is strict JSON."""
    records = [json.loads(line, parse_constant=pytest.fail) for line in out.splitlines()]
    lines = [line for line in said.splitlines() if line.startswith(b"amptui: ")]
    assert status in (0, 1, UsageError.exit_status, UNSAVED_STATUS)
    assert b"Traceback" not in said
    if status == UNSAVED_STATUS:
        assert {line.split(b": ")[1] for line in lines} <= {b"journal", b"checkpoints", b"run.json"}
        assert lines
    else:
        assert len(lines) == 1 or (status == 0 and not lines), said
    if status not in (1, UsageError.exit_status):
        blocks = [record for record in records if record["type"] == "Steps"]
        steps = [block["first_step"] + index for block in blocks for index in range(block["count"])]
        assert steps == [1, 2, 3]
        # After a run's last word only the journal's own trouble is told, and the answer.
        told = [each["type"] for each in records if each["type"] not in ("KeepingChanged", "AmpAnswer")]
        assert told[-1] == "RunFinished"


@pytest.mark.ci
@pytest.mark.parametrize(
    "environment",
    ENVIRONMENTS,
    ids=lambda found: "+".join(found)[:40],
)
def test_a_training_in_an_odd_environment(
    environment: Mapping[str, str | None], warm: WarmSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if "HOME" not in environment:
        monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    for name, value in environment.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    done = warm.run(*arguments(tmp_path, environment))
    assert (done.returncode == UsageError.exit_status) == (
        "WORLD_SIZE" in environment
    )  # it would train beside the others
    assert_sound(done.returncode, done.stdout, done.stderr)


def start_anew(
    folder: Path, environment: Mapping[str, str | None], limit: tuple[int, int] | None = None
) -> None:
    def lower() -> None:
        if limit is not None:
            resource.setrlimit(limit[0], (limit[1], limit[1]))

    wanted = {**os.environ, **{name: value for name, value in environment.items() if value is not None}}
    done = subprocess.run(
        [sys.executable, "-m", "amptui", *arguments(folder, environment)],
        env=wanted,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=400,
        check=False,
        preexec_fn=lower,
    )
    encoding = wanted.get("PYTHONIOENCODING", "utf-8")
    assert_sound(done.returncode, done.stdout, done.stderr.decode(encoding, "replace").encode())


@pytest.mark.ci
@pytest.mark.parametrize(
    "environment", AT_THE_START, ids=lambda found: "+".join(found.items().__iter__().__next__())
)
def test_a_training_started_in_an_odd_environment(
    environment: Mapping[str, str | None], tmp_path: Path
) -> None:
    start_anew(tmp_path, environment)


@pytest.mark.ci
@pytest.mark.parametrize("what", LIMITS)
def test_a_training_under_a_limit_of_the_system(what: str, tmp_path: Path) -> None:
    start_anew(tmp_path, {}, LIMITS[what])
