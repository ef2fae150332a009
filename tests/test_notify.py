"""A run's news reaches a webhook, whose URL stays a secret, and rings the bell of each terminal once."""

import re
import subprocess
from pathlib import Path

import pytest

from amptui.base.notify_url import VARIABLE
from tests.checkout import ROOT
from tests.living import ended_afterwards, train, train_arguments, wait_for_end, wait_until
from tests.terminal import Terminal, amptui_command
from tests.warm import WarmSource
from tests.webhooks import SECRET, receiver

DONE = r"knobs: done after 30 steps in .+ \(run on .+\)"
FAILED = r"knobs: failed: ValueError: bad label in batch 9.* \(run on .+\)"

SCRIPT = """
import os, subprocess, sys
IS_OBSERVED = sys.argv[1] == "observed"
if IS_OBSERVED:
    assert "AMPTUI_NOTIFY" not in os.environ
from tests.observed import Loop
loop = Loop("fp32")
if not IS_OBSERVED:
    import amptui
    amptui.observe(loop.model, loop.optimizer)
assert "AMPTUI_NOTIFY" not in os.environ
print("child", subprocess.run(["env"], capture_output=True, text=True, check=True).stdout.count("NOTIFY"))
for step in range(1, 20):
    loop.train_step(step)
raise ValueError("on purpose")
"""


def assert_secret(run: Path, *outputs: str | bytes) -> None:
    """No byte of the URL but its host is in a file of the run, or was printed."""
    files = [file for file in run.rglob("*") if file.is_file()]
    assert run / "run.json" in files
    assert [file for file in files if SECRET.encode() in file.read_bytes()] == []
    assert not any(SECRET in str(output) for output in outputs)


@pytest.mark.parametrize(
    ("by", "options"),
    [
        ("option", ()),
        pytest.param("variable", (), marks=pytest.mark.ci),
        pytest.param("option", ("--nproc", "2"), marks=pytest.mark.ci),
    ],
    ids=["option", "variable", "of several ranks one"],
)
def test_the_end_is_sent_once_and_the_url_is_in_no_file(
    by: str, options: tuple[str, ...], warm: WarmSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with receiver() as server, ended_afterwards(run):
        if by == "variable":
            monkeypatch.setenv(VARIABLE, server.url)
        else:
            options = (*options, "--notify", server.url)
        done = warm.run(*train_arguments(run, "--headless", "--steps", "30", *options))
        assert done.returncode == 0
        (sent,) = server.posts
    assert re.fullmatch(DONE, sent.text)
    assert_secret(run, done.stdout, done.stderr)


@pytest.mark.ci
def test_a_run_whose_screen_is_gone_sends_its_failure(warm: WarmSource, tmp_path: Path) -> None:
    run, gate = tmp_path / "run", tmp_path / "gate"
    trouble = ("--set", "trouble=loss", "--set", "at=9", "--set", f"gate={gate}")
    with receiver() as server, ended_afterwards(run):
        command = amptui_command(*train_arguments(run, *trouble, "--notify", server.url))
        with Terminal(command, warm=warm) as terminal:
            terminal.wait_for(r"step\s+[1-9]")
            assert terminal.leave("d") == 0
        assert server.posts == []
        gate.touch()
        (sent,) = server.wait_for(1)
        wait_for_end(run)
        assert len(server.posts) == 1
    assert re.fullmatch(FAILED, sent.text)
    assert_secret(run, terminal.text)


@pytest.mark.parametrize(
    "kind",
    [pytest.param("observed", marks=pytest.mark.ci), pytest.param("calls amptui", marks=pytest.mark.nightly)],
)
def test_a_script_sends_its_failure_and_its_children_know_no_url(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    run, script = tmp_path / "run", tmp_path / "script.py"
    script.write_text(SCRIPT)
    observe = ("--observe",) if kind == "observed" else ()
    with receiver() as server, ended_afterwards(run):
        arguments = ("--headless", *observe, "--run-dir", str(run), "--notify", server.url)
        command = amptui_command("run", *arguments, str(script), kind)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert "ValueError: on purpose" in done.stderr
        (sent,) = server.posts
    assert "child 0" in done.stdout
    assert re.fullmatch(r"script: failed: ValueError: on purpose.* \(run on .+\)", sent.text)
    assert_secret(run, done.stdout, done.stderr)


@pytest.mark.ci
@pytest.mark.parametrize("command", ["train", "run"])
def test_a_wrong_url_is_a_usage_error_of_one_line_that_does_not_repeat_it(
    command: str, warm: WarmSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = f"htps://host/{SECRET}"
    rest = {"train": ["mnist"], "run": ["script.py"]}[command]
    said = [warm.run(command, "--notify", wrong, *rest)]
    monkeypatch.setenv(VARIABLE, wrong)
    said.append(warm.run(command, *rest))
    for done, name in zip(said, ("argument --notify", VARIABLE), strict=True):
        assert (done.returncode, done.stdout) == (2, b"")
        assert re.fullmatch(rf"amptui: {name}: the URL must begin .+\n", done.stderr.decode())
        assert SECRET.encode() not in done.stderr


_OTHER_OSC = re.compile(rb"\x1b\](?:22|2|0);[^\x07\x1b]*(?:\x07|\x1b\\)")
"""Textual's wishes for the pointer and the title: their BEL ends a sequence and rings nothing."""

RUNG_DONE = r"\x07\x1b\]9;amptui: knobs: done after 30 steps in [^\x07\x1b]+\x07"
RUNG_FAILED = r"\x07\x1b\]9;amptui: knobs: failed: ValueError: bad label in batch 9[^\x07\x1b]*\x07"
ASKS = r"\x07\x1b\]9;amptui: knobs needs an answer: the loss has been nan since step 9[^\x07\x1b]*\x07"

ENDS, FAILS = ("--steps", "30"), ("--set", "trouble=loss", "--set", "at=9")


def rung(terminal: Terminal) -> str:
    """All that rang, or asked the desktop for a notification, in the order written; nothing else."""
    written = _OTHER_OSC.sub(b"", bytes(terminal.written)).decode("utf-8", "replace")
    parts = re.findall(r"\x1bP.*?\x1b\\|\x1b\](?:9|777);[^\x07]*\x07|\x07", written)
    return "".join(parts)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("options", "expected", "status"),
    [
        (ENDS, RUNG_DONE, 0),
        (FAILS, RUNG_FAILED, 1),
        ((*ENDS, "--quiet"), "", 0),
        ((*ENDS, "--headless"), RUNG_DONE, 0),
        ((*FAILS, "--headless"), RUNG_FAILED, 1),
        ((*FAILS, "--headless", "--quiet"), "", 1),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_the_end_rings_once_unless_the_run_is_quiet(
    options: tuple[str, ...], expected: str, status: int, warm: WarmSource, tmp_path: Path
) -> None:
    with train(warm, tmp_path / "run", *options) as terminal:
        if "--headless" not in options:
            terminal.wait_for("ValueError: bad label" if status else "finished")
            terminal.press("?", until="then a glossary")  # another frame, and another look at the run
            terminal.press("\x1b", until_gone="then a glossary")
            terminal.press("q")
        assert terminal.wait() == status
        assert re.fullmatch(expected, rung(terminal))


@pytest.mark.ci
def test_the_screen_rings_when_the_run_waits_for_an_answer_and_not_when_the_person_ends_it(
    warm: WarmSource, tmp_path: Path
) -> None:
    with train(warm, tmp_path / "run", "--set", "trouble=nan", "--set", "at=9") as terminal:
        terminal.wait_for("esc|enter")
        wait_until(lambda: terminal.read(0.05) and "needs an answer" in rung(terminal), "no bell")
        assert terminal.leave("\x03") == 130
        # The NaN itself may have been seen, and told, in an earlier frame than the pause.
        alarm = r"\x07\x1b\]9;amptui: knobs: (?!done|failed)[^\x07\x1b]*(?:NaN|not finite)[^\x07\x1b]*\x07"
        assert re.fullmatch(f"({alarm})?{ASKS}", rung(terminal))


@pytest.mark.ci
def test_a_screen_that_attached_rings_and_a_quiet_one_beside_it_does_not(
    warm: WarmSource, tmp_path: Path
) -> None:
    run, gate = tmp_path / "run", tmp_path / "gate"
    held = ("--set", "at=20", "--set", f"gate={gate}")
    with train(warm, run, *ENDS, *held) as first:
        first.wait_for(r"step\s+[1-9]")
        attach = amptui_command("attach", str(run))
        with (
            Terminal(attach, warm=warm) as second,
            Terminal([*attach, "--quiet"], warm=warm) as third,
        ):
            for terminal in (second, third):
                terminal.wait_for("running")
            gate.touch()
            for terminal, expected in ((first, RUNG_DONE), (second, RUNG_DONE), (third, "")):
                terminal.wait_for("finished")
                assert terminal.leave("q") == 0
                assert re.fullmatch(expected, rung(terminal))
