"""HOST:RUN on the command line, and the first line of another machine."""

import io
import os
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.base.errors import RemoteError, UsageError
from amptui.reports.runs_table import _END_LINE, _json_line, list_runs
from amptui.runs.kept_run import KeptRun
from amptui.runs.protocol import PROTOCOL
from amptui.runs.relay import Header, read_header
from amptui.runs.remote import Remote, Ssh, UnreachableError, remote_of
from amptui.runs.remote_runs import remote_runs


@pytest.mark.parametrize(
    ("text", "host", "run"),
    [
        ("box:", "box", ""),
        ("box:mnist", "box", "mnist"),
        ("me@box.example.org:a run", "me@box.example.org", "a run"),
        ("box:/a/b:c", "box", "/a/b:c"),
        ("box:~/runs/a", "box", "~/runs/a"),
        ("[::1]:run", "::1", "run"),
        ("me@[fe80::1%eth0]:run", "me@fe80::1%eth0", "run"),
    ],
)
def test_a_host_stands_before_the_first_colon(text: str, host: str, run: str) -> None:
    remote = remote_of(text)
    assert remote == Remote(host=host, run=run)
    assert remote.argument(run).replace("'", "") == text


@pytest.mark.parametrize("text", ["", "mnist", "./a:b", "/a:b", "a/b:c", ":run", "~/a:b"])
def test_a_slash_before_the_colon_or_no_host_is_a_path(text: str) -> None:
    assert remote_of(text) is None


def test_what_is_here_is_no_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert remote_of("lr:0.1") == Remote(host="lr", run="0.1")
    (tmp_path / "lr:0.1").mkdir()
    assert remote_of("lr:0.1") is None
    (runs / "kept:run").mkdir(parents=True)
    assert remote_of("kept:run") is None


@pytest.mark.parametrize(
    "text", ["-oProxyCommand=x:", "-J:run", "me@-J:run", "-l@box:run", "@box:run", "me@:run"]
)
def test_an_option_is_no_host(text: str) -> None:
    with pytest.raises(UsageError, match="is not a host"):
        remote_of(text)


def test_the_command_on_the_other_machine_comes_from_option_or_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AMPTUI_REMOTE_COMMAND", raising=False)
    assert Remote(host="box", run="").program == "amptui"
    monkeypatch.setenv("AMPTUI_REMOTE_COMMAND", "~/venv/bin/amptui")
    assert Remote(host="box", run="").program == "~/venv/bin/amptui"
    named = Remote(host="box", run="", command="uv run amptui")
    assert named.program == "uv run amptui"
    assert named.argument("a b") == "'box:a b' --remote-command 'uv run amptui'"


@given(st.text(), st.text(), st.text())
def test_a_header_arrives_as_it_was_sent_but_for_what_disturbs_a_line(
    folder: str, run: str, error: str
) -> None:
    sent = Header(version="1.2", protocol=PROTOCOL, folder=f"/{folder}", run=run, error=error, status=2)
    header = read_header(sent.line().rstrip(b"\n"))
    assert header is not None
    assert (header.version, header.protocol, header.folder, header.status) == (
        "1.2",
        PROTOCOL,
        f"/{folder}",
        2,
    )
    assert header.run.isprintable()
    assert header.error.isprintable()


@given(st.text())
def test_a_header_is_found_behind_an_unfinished_line_of_the_shell(noise: str) -> None:
    sent = Header(version="1.2", protocol=PROTOCOL, folder="/run", run="run")
    assert read_header(noise.encode("utf-8", "replace") + sent.line().rstrip(b"\n")) == sent


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"Welcome to box",
        b"{}",
        b'{"version": "1", "protocol": 2, "folder": "/x"}',
        b'{"amptui-relay": true, "version": "1", "protocol": "2", "folder": "/x"}',
        b'{"amptui-relay": true, "version": "1; x", "protocol": 2, "folder": "/x"}',
        b'{"amptui-relay": true, "version": "1", "protocol": 2}',
        b'{"amptui-relay": true, "version": "1", "protocol": 2, "folder": "x"}',
        b'{"amptui-relay": true, "version": "1", "protocol": 2, "folder": 7}',
        '{"amptui-relay": true, "version": "é"}'.encode(),
    ],
)
def test_anything_else_is_no_header(line: bytes) -> None:
    assert read_header(line) is None


@pytest.fixture
def hanging_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An `ssh` whose other end says nothing."""
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\n[ "$1" = -G ] || exec sleep 600\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.ci
@pytest.mark.usefixtures("hanging_ssh")
def test_a_list_of_runs_does_not_wait_for_a_machine_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amptui.runs.remote._BATCH_SECONDS", 0.2)
    with pytest.raises(UnreachableError, match=r"cannot reach box: no answer for 0\.2 s"):
        remote_runs(Remote(host="box", run=""), batch=True)


@pytest.mark.usefixtures("hanging_ssh")
@pytest.mark.parametrize("folder", ["/a\0b", "/a\ud800b"])
def test_a_name_that_no_argument_can_hold_is_refused(folder: str) -> None:
    with pytest.raises(RemoteError, match="cannot start ssh"):
        Ssh(Remote(host="box", run=""), ["relay", "--", folder], batch=True)


def ssh_that_runs(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(f'#!/bin/sh\n[ "$1" = -G ] || {command}\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")


def test_a_machine_that_sends_without_end_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh_that_runs("yes no run at all", tmp_path, monkeypatch)
    with pytest.raises(RemoteError) as caught:
        remote_runs(Remote(host="box", run=""), batch=True)
    assert str(caught.value) == (
        "box sends more than 20,480,000 bytes; list fewer with `amptui runs HOST: --limit N`"
    )


@pytest.mark.parametrize(
    ("command", "came"), [("true", "no message"), ("echo bye for now", "bye for now"), ("echo {}", "{}")]
)
def test_a_shell_that_exits_before_amptui_runs_is_not_a_machine_without_runs(
    command: str, came: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh_that_runs(command, tmp_path, monkeypatch)
    with pytest.raises(RemoteError) as caught:
        remote_runs(Remote(host="box", run=""), batch=True)
    assert str(caught.value) == (
        f"box exited with status 0 without an answer: {came}; "
        "a start-up file of its shell may exit; to see more: ssh box"
    )


def test_the_end_of_a_list_is_written_only_for_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    out = io.StringIO()
    assert list_runs(json=True, out=out) == 0
    assert out.getvalue() == ""
    assert list_runs(json=True, out=out, with_end=True) == 0
    assert out.getvalue() == _END_LINE


@pytest.mark.ci
def test_the_largest_list_that_is_promised_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = KeptRun(
        name="mnist-deep-20261125-201300",
        folder=Path("/a/home/on/some/network/of/a/group/with/quite/a/path/runs/mnist-deep-20261125-201300"),
        state="failed",
        model="/a/home/on/some/network/of/a/group/with/quite/a/path/models/mine.py:Mine",
        precision="bf16",
        step=1_234_567,
        total_steps=10_000_000,
        started=1_800_000_000.123456,
        began=None,
        written=1_800_000_000.123456,
        device="cuda",
        device_name="NVIDIA H100 80GB HBM3",
        host=None,
        pid=None,
        is_here=True,
        error="out of memory in step 340: tried to allocate 2.0 GiB; use a smaller --batch-size",
    )
    listed = tmp_path / "listed"
    listed.write_text(f"{_json_line(ended)}\n" * 20_000 + _END_LINE)
    ssh_that_runs(f"cat {shlex.quote(str(listed))}", tmp_path, monkeypatch)
    assert remote_runs(Remote(host="box", run=""), batch=True).runs == [ended] * 20_000
