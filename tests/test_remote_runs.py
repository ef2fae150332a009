"""A run on another machine, watched through a real ssh: attached, lost, refused."""

import json
import os
import re
import shlex
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from amptui.records import codec
from amptui.records.run import Note, PrecisionChanged, Printed, Record, RunFailed
from amptui.runs.protocol import Hello, encode
from tests.living import (
    Lives,
    headless_run,
    records_of,
    screens,
    stop,
    wait_for_more,
    wait_until,
)
from tests.remote import HOST, RemoteMachine, ssh_processes
from tests.terminal import Terminal, amptui_command
from tests.warm import WarmSource

pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteMachine]:
    for program in ("ssh", "ssh-keygen"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} here")
    machine = RemoteMachine(tmp_path_factory.mktemp("machine") / "ssh")
    machine.prepare()
    try:
        yield machine
    finally:
        machine.stop()


@pytest.fixture
def box(machine: RemoteMachine, monkeypatch: pytest.MonkeyPatch) -> RemoteMachine:
    monkeypatch.setenv("PATH", f"{machine.folder}/here{os.pathsep}{os.environ['PATH']}")
    return machine


def attach(argument: str, *options: str) -> list[str]:
    return amptui_command("attach", argument, *options)


@contextmanager
def watched(lives: Lives, warm: WarmSource, folder: Path) -> Iterator[tuple[Path, Terminal]]:
    with (
        headless_run(lives, folder) as run,
        Terminal(attach(f"{HOST}:{run}"), warm=warm, size=(200, 40)) as terminal,
    ):
        terminal.wait_for(r"step\s+[\d,]+")
        yield run, terminal


def test_a_remote_run_is_watched_and_switched(
    box: RemoteMachine, lives: Lives, warm: WarmSource, tmp_path: Path
) -> None:
    folder = tmp_path / 'a run\'s "name" $HOME'
    with watched(lives, warm, folder) as (run, terminal):
        terminal.press("p", until=r"AMP bf16 .*running")
        terminal.press("i", until=rf"folder\s+{HOST}:/")
        terminal.press("\x1b", until="╭ loss")
        assert terminal.leave("d") == 0
        assert "training continues" in terminal.text
        assert f"amptui attach '{HOST}:/" in terminal.text
        wait_until(lambda: not screens(run), "that the screen has left")
        stop(run)
    (change,) = [record for record in records_of(folder) if isinstance(record, PrecisionChanged)]
    assert change.current == "bf16"


def test_a_run_whose_connection_is_lost_goes_on_and_how_to_watch_it_again_is_told(
    box: RemoteMachine, lives: Lives, warm: WarmSource, tmp_path: Path
) -> None:
    with watched(lives, warm, tmp_path / "run") as (run, terminal):
        (ssh,) = ssh_processes(terminal.process.pid)
        os.kill(ssh, signal.SIGKILL)  # as a lost network ends it
        terminal.wait_for(f"connection to {HOST} lost; to watch the run again: amptui attach {HOST}:")
        wait_for_more(run, steps=20)
        wait_until(lambda: not screens(run), "the relay outlived its connection")
        assert terminal.leave("q") == 1
        assert re.search(rf"detached at step [\d,]+; connection to {HOST} lost", terminal.text)
        assert f"to watch it again: amptui attach {HOST}:{run}" in terminal.text.replace("\n", "")
        stop(run)


def test_a_run_that_ends_is_told_over_its_connection(
    box: RemoteMachine, lives: Lives, warm: WarmSource, tmp_path: Path
) -> None:
    with watched(lives, warm, tmp_path / "run") as (run, terminal):
        stop(run)
        terminal.wait_for("stopped")
        assert terminal.leave("q") == 0
        assert f"journal: {HOST}:{run}/journal.jsonl" in terminal.text.replace("\n", "")


def test_ssh_asks_on_the_terminal_before_the_screen_opens(
    box: RemoteMachine, lives: Lives, tmp_path: Path
) -> None:
    with headless_run(lives, tmp_path / "run") as run:
        asks = box.configured("StrictHostKeyChecking ask", f"UserKnownHostsFile {tmp_path}/none")
        with asks, Terminal(attach(f"{HOST}:{run}")) as terminal:
            terminal.wait_for("continue connecting")
            assert b"\x1b[?1049h" not in terminal.written
            terminal.press("yes\r", until=r"step\s+[\d,]+")
            assert terminal.leave("d") == 0
        stop(run)


def test_a_forged_run_writes_nothing_here(box: RemoteMachine, tmp_path: Path) -> None:
    """The machine names a folder that is here as well, and says what would disturb a terminal."""
    victim = tmp_path / "victim"
    victim.mkdir()
    title = "\x1b]0;forged\x07"
    records: tuple[Record, ...] = (
        Note(time=1.0, severity="error", text=f"{title} note"),
        Printed(time=1.0, text=f"{title} line"),
        RunFailed(time=2.0, step=0, error=f"{title} error", traceback=title),
    )
    hello = encode(Hello(version=title)).decode()
    facts = {"amptui-relay": True, "folder": str(victim)}
    header = json.dumps(facts | {"run": f"{title}'; touch x"})
    lines = [header, hello.strip(), *map(codec.dumps, records)]
    (tmp_path / "lines").write_text("".join(f"{line}\n" for line in lines))
    with (
        box.installed(f"cat {shlex.quote(str(tmp_path / 'lines'))}"),
        Terminal(attach(f"{HOST}:x"), size=(200, 40)) as terminal,
    ):
        assert terminal.wait() == 1
        assert "0;forged? error" in terminal.text
        assert title.encode() not in terminal.written
    assert list(victim.iterdir()) == []


def test_ctrl_c_ends_the_wait_for_a_machine_whose_dead_link_is_noticed_in_seconds(box: RemoteMachine) -> None:
    with (
        box.installed("exec sleep 600"),
        Terminal(attach(f"{HOST}:x")) as terminal,
    ):
        (ssh,) = wait_until(lambda: ssh_processes(terminal.process.pid), "ssh did not start")
        wait_until(lambda: "-F" in psutil.Process(ssh).cmdline(), "the wrapper did not start ssh")
        assert "ServerAliveInterval=5" in psutil.Process(ssh).cmdline()
        assert terminal.leave("\x03") == 130
        wait_until(lambda: not psutil.pid_exists(ssh), "ssh outlives amptui")


def test_the_newest_run_of_another_machine_needs_no_name(
    box: RemoteMachine, lives: Lives, warm: WarmSource
) -> None:
    folder = box.home / ".local" / "state" / "amptui" / "runs" / "a run"
    with headless_run(lives, folder) as run, Terminal(attach(f"{HOST}:"), warm=warm) as terminal:
        terminal.wait_for(r"step\s+[\d,]+")
        assert terminal.leave("d") == 0
        assert f"amptui attach '{HOST}:a run'" in terminal.text
        stop(run)
