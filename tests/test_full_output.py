"""Output that leads to a full disk, or to nobody: one line says so, and no training ends for it."""

import errno
import os
import subprocess
from io import BufferedWriter, TextIOWrapper
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from amptui.process.plain_lines import LastingStream
from amptui.records.run import RunFinished
from tests.living import outcome, steps_of
from tests.terminal import KNOBS, amptui_command
from tests.warm import WarmSource

FULL = Path("/dev/full")

pytestmark = pytest.mark.skipif(not FULL.is_char_device(), reason="needs /dev/full")


def run(command: list[str], *, unbuffered: str = "", out: str = "/dev/full") -> tuple[int, list[str]]:
    """The exit status, and the lines on standard error."""
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open(out, "w") as full:  # noqa: PTH123 - a device
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, timeout=120, check=False
        )
    return done.returncode, done.stderr.splitlines()


@pytest.mark.ci
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "arguments", [["models"], ["runs"], ["train", "--help"], ["--version"]], ids=" ".join
)
def test_a_command_whose_output_finds_no_room_says_so_and_fails(
    arguments: list[str], unbuffered: str
) -> None:
    status, said = run(amptui_command(*arguments), unbuffered=unbuffered)
    assert status == 1
    (line,) = said
    assert line.startswith("amptui: ")
    assert os.strerror(errno.ENOSPC) in line


def train(warm: WarmSource, run: Path, option: str, out: int) -> list[str]:
    """Train a model that prints in every way there is; the lines on standard error that are ours."""
    command = amptui_command(
        "train", KNOBS, "--device", "cpu", "--run-dir", str(run), "--steps", "90", option
    )
    with open(os.devnull) as nothing, TemporaryFile("w+") as err:  # noqa: PTH123
        process = warm.start([*command, "--set", "trouble=print"], nothing.fileno(), out, err.fileno())
        assert process.wait(60) == 0
        err.seek(0)
        said = err.read().splitlines()
    assert outcome(run) is RunFinished
    assert len(steps_of(run)) == 90
    return [line for line in said if line.startswith("amptui: ")]


@pytest.mark.ci
@pytest.mark.parametrize("option", ["--headless", "--json"])
def test_a_training_goes_on_without_room_for_its_lines(option: str, warm: WarmSource, tmp_path: Path) -> None:
    with FULL.open("w") as full:
        (said,) = train(warm, tmp_path / "run", option, full.fileno())
    assert f"{os.strerror(errno.ENOSPC)}; training continues" in said


@pytest.mark.ci
def test_a_model_that_prints_to_a_reader_that_is_gone_trains_on(warm: WarmSource, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    assert train(warm, tmp_path / "run", "--headless", writing) == []
    os.close(writing)


@pytest.mark.parametrize("write_through", [True, False])
def test_prints_fail_nowhere_and_are_told_once(
    *, write_through: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = FULL.open("wb", buffering=0)
    stream = TextIOWrapper(BufferedWriter(raw), write_through=write_through, line_buffering=True)
    lasting = LastingStream(stream, "standard output")
    for _ in range(3):
        print("x" * 10_000, file=lasting)
    lasting.finish()
    stream.close()
    assert capsys.readouterr().err.count("cannot write to standard output") == 1
