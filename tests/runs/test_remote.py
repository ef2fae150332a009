"""HOST:RUN on the command line, and the first line of another machine."""

import json
import os
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.base.errors import AmptuiError, RemoteError, UsageError
from amptui.runs.remote import (
    Header,
    Remote,
    connect,
    read_header,
    remote_of,
)
from tests.remote import write_program


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


def test_what_is_here_and_what_begins_like_a_path_is_no_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Path
) -> None:
    for text in ("", "mnist", "./a:b", "/a:b", "a/b:c", ":run", "~/a:b"):
        assert remote_of(text) is None
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


@given(st.text())
def test_a_header_is_found_behind_an_unfinished_line_of_the_shell(noise: str) -> None:
    sent = Header(folder="/run", run="run")
    assert read_header(noise.encode("utf-8", "replace") + sent.line().rstrip(b"\n")) == sent


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b'{"folder": "/x"}',
        b'{"amptui-relay": true, "folder": "x"}',
        b'{"amptui-relay": true, "folder": 7}',
        b'{"amptui-relay": true}',
    ],
)
def test_anything_else_is_no_header(line: bytes) -> None:
    assert read_header(line) is None


# An `ssh` that runs a command of the test's own in place of any on another machine.

BOX = Remote(host="box", run="")


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Says what `ssh` runs."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return partial(write_program, tmp_path / "ssh")


def relayed(**fields: object) -> str:
    """The shell command that writes what `amptui relay` writes first."""
    facts = {"amptui-relay": True, "folder": "/there/run"}
    return f"printf '%s\\n' {shlex.quote(json.dumps(facts | fields))}"


@pytest.mark.parametrize(
    ("command", "kind", "told"),
    [
        (
            relayed(error="no run 'x'; check the path", status=2),
            UsageError,
            "box: no run 'x'; check the path",
        ),
        (relayed(error="\x1b]0;title\x07 and\nmore", status=1), RemoteError, "box: ?]0;title? and more"),
        ("echo told >&2; exit 3", RemoteError, "box exited with status 3 without an answer: told"),
        ("true", RemoteError, "no message; a start-up file of its shell may exit; to see more: ssh box"),
        ("echo bye for now", RemoteError, "with status 0 without an answer: bye for now; a start-up file"),
        (
            "exec no-such-program",
            RemoteError,
            "name it with AMPTUI_REMOTE_COMMAND, for example '~/venv/bin/amptui'",
        ),
        ("head -c 100000 /dev/zero", RemoteError, "box does not speak amptui's protocol"),
        ("echo refused: why >&2; exit 255", RemoteError, "cannot reach box: refused: why"),
        (
            "echo lines >&2; echo Host key verification failed. >&2; exit 255",
            RemoteError,
            "cannot reach box: Host key verification failed; to see more: ssh box",
        ),
    ],
)
def test_what_another_machine_answers_is_told_in_one_line(
    command: str, kind: type[AmptuiError], told: str, ssh: Callable[[str], None]
) -> None:
    ssh(command)
    with pytest.raises(kind) as refused:
        connect(BOX)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_without_ssh_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RemoteError, match=r"^there is no ssh here; install OpenSSH's client$"):
        connect(BOX)
