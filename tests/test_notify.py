"""A run's news reaches a webhook from the command line on, whoever watches, and its URL stays a secret."""

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from amptui.base.notify_url import VARIABLE
from tests.checkout import ROOT
from tests.living import ended_afterwards, train_arguments, wait_for_end
from tests.terminal import FRAMES, Terminal, amptui_command
from tests.warm import ENVIRONMENT, WarmSource
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


def run_to_end(command: Sequence[str], folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """What no warm process can start: another interpreter, or another folder."""
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=120
    )


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
        command = amptui_command(*train_arguments(run, *FRAMES, *trouble, "--notify", server.url))
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
def test_a_script_sends_its_failure_and_its_children_know_no_url(kind: str, tmp_path: Path) -> None:
    run, script = tmp_path / "run", tmp_path / "script.py"
    script.write_text(SCRIPT)
    observe = ("--observe",) if kind == "observed" else ()
    with receiver() as server, ended_afterwards(run):
        arguments = ("--headless", *observe, "--run-dir", str(run), "--notify", server.url)
        done = run_to_end(amptui_command("run", *arguments, str(script), kind))
        assert "ValueError: on purpose" in done.stderr
        (sent,) = server.posts
    assert "child 0" in done.stdout
    assert re.fullmatch(r"script: failed: ValueError: on purpose.* \(run on .+\)", sent.text)
    assert_secret(run, done.stdout, done.stderr)


@pytest.mark.ci
def test_an_attached_screen_sends_what_it_sees(warm: WarmSource, tmp_path: Path) -> None:
    run, gate = tmp_path / "run", tmp_path / "gate"
    held = ("--headless", "--steps", "30", "--set", "at=20", "--set", f"gate={gate}")
    with receiver() as server, ended_afterwards(run):
        with Terminal(amptui_command(*train_arguments(run, *held)), warm=warm) as training:
            training.wait_for("first step|step")
            attach = amptui_command("attach", str(run), *FRAMES, "--notify", server.url)
            with Terminal(attach, warm=warm) as screen:
                screen.wait_for("running")
                gate.touch()
                screen.wait_for("finished")
                (sent,) = server.wait_for(1)
                assert screen.leave("q") == 0
            assert training.wait() == 0
        assert len(server.posts) == 1
    assert re.fullmatch(DONE, sent.text)
    assert_secret(run, screen.text)


@pytest.mark.ci
@pytest.mark.parametrize("command", ["train", "run", "attach"])
def test_a_wrong_url_is_a_usage_error_of_one_line_that_does_not_repeat_it(
    command: str, warm: WarmSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = f"htps://host/{SECRET}"
    rest = {"train": ["mnist"], "run": ["script.py"], "attach": []}[command]
    said = [warm.run(command, "--notify", wrong, *rest)]
    if command != "attach":
        monkeypatch.setenv(VARIABLE, wrong)
        said.append(warm.run(command, *rest))
    for done, name in zip(said, ("argument --notify", VARIABLE), strict=False):
        assert (done.returncode, done.stdout) == (2, b"")
        assert re.fullmatch(rf"amptui: {name}: the URL must begin .+\n", done.stderr.decode())
        assert SECRET.encode() not in done.stderr
