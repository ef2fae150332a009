"""Another machine for tests, reached by a real ssh: this one, through an ssh server on the loopback.

The server is asyncssh's, which any user can run, or OpenSSH's sshd, which starts the user's login shell.
"""

import getpass
import importlib.util
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
import pytest

from tests.checkout import ROOT
from tests.living import wait_until

HOST = "box"
"""Its name in the configuration of ssh."""


SSHD = Path("/usr/sbin/sshd")

_SSHD_FOLDER = Path("/run/sshd")
"""Where root's sshd locks up what talks to strangers; the system makes it when it starts its own."""

_SSHD_CONFIGURATION = """\
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
SetEnv {environment}
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
"""

Server = Literal["asyncssh", "sshd"]


def skip_without_ssh(server: Server) -> None:
    """Skip a test where a part of it is missing."""
    for program in ("ssh", "ssh-keygen"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} here")
    if server == "asyncssh" and importlib.util.find_spec("asyncssh") is None:
        pytest.skip("asyncssh, the server of these tests, is not installed")
    if server == "sshd" and not SSHD.exists():
        pytest.skip(f"there is no {SSHD} here")
    if server == "sshd" and os.geteuid() == 0 and not _SSHD_FOLDER.is_dir():
        pytest.skip(f"root's sshd needs the folder {_SSHD_FOLDER}")


def _write_program(path: Path, command: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{command}\n")
    path.chmod(0o755)


@dataclass
class RemoteMachine:
    """An ssh server, and an `ssh` that knows it as `box`."""

    folder: Path
    server: Server = "asyncssh"
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def home(self) -> Path:
        """The user's, there."""
        return self.folder / "home"

    @property
    def bin(self) -> Path:
        """What a shell there finds."""
        return self.folder / "there"

    def prepare(self) -> None:
        """Make the keys, `amptui` there and `ssh` here."""
        self.home.mkdir(parents=True)
        for name in ("host_key", "user_key"):
            key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)]
            subprocess.run(key, check=True)
        self.install_amptui()
        ssh = shutil.which("ssh")
        _write_program(self.folder / "here" / "ssh", f'exec {ssh} -F {self.folder}/config "$@"')

    def install_amptui(self) -> None:
        """Make `amptui` there the one under test."""
        self.install(f'cd {shlex.quote(str(ROOT))} && exec {sys.executable} -m amptui "$@"')

    def install(self, command: str) -> None:
        """Make ``command`` what `amptui` is there."""
        _write_program(self.bin / "amptui", command)

    def start(self) -> None:
        """Serve, at a new port."""
        (self.folder / "port").unlink(missing_ok=True)
        if self.server == "sshd":
            self._start_sshd()
        else:
            self._start_asyncssh()
        self.configure()

    def _start_asyncssh(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.ssh_server", str(self.folder)],
            env={**os.environ, "HOME": str(self.home), "PATH": self._path},
            cwd=ROOT,
            stderr=subprocess.DEVNULL,  # what asyncssh says of connections that were killed
        )
        wait_until((self.folder / "port").exists, "the ssh server does not listen")

    def _start_sshd(self) -> None:
        port = free_port()
        environment = shlex.join([f"HOME={self.home}", f"PATH={self._path}"])
        configuration = _SSHD_CONFIGURATION.format(port=port, folder=self.folder, environment=environment)
        (self.folder / "sshd_config").write_text(configuration)
        log = self.folder / "sshd.log"
        log.write_text("")
        server = [str(SSHD), "-f", str(self.folder / "sshd_config"), "-E", str(log)]
        # Since 9.8 it shuts out an address whose logins fail; older ones know no such option.
        patient = [*server, "-o", "PerSourcePenalties=no"]
        if subprocess.run([*patient, "-t"], check=False).returncode == 0:
            server = patient
        self.process = subprocess.Popen([*server, "-D"])
        process = self.process

        def listens() -> bool:
            return process.poll() is not None or "Server listening" in log.read_text()

        wait_until(listens, "sshd does not listen")
        if process.poll() is not None:
            pytest.skip(f"sshd does not start: {log.read_text()}")
        (self.folder / "port").write_text(str(port))

    @property
    def _path(self) -> str:
        return f"{self.bin}{os.pathsep}{os.environ['PATH']}"

    def reach(self) -> "subprocess.CompletedProcess[str]":
        """What ssh says if it is to run nothing there."""
        command = [str(self.folder / "here" / "ssh"), "-o", "BatchMode=yes", HOST, "true"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def skip_unless_reached(self) -> None:
        """Skip a test where sshd lets its own user not in, such as one whose account is locked."""
        done = self.reach()
        if done.returncode != 0:
            log = (self.folder / "sshd.log").read_text() if self.server == "sshd" else ""
            pytest.skip(f"{self.server} refuses this user: {done.stderr}{log}")

    def configure(self, *lines: str) -> None:
        """Write the configuration of ssh; ``lines`` come first and so win."""
        port = (self.folder / "port").read_text()
        public = (self.folder / "host_key.pub").read_text()
        (self.folder / "known_hosts").write_text(f"{HOST} {public}")
        options = {
            "HostName": "127.0.0.1",
            "HostKeyAlias": HOST,
            "Port": port,
            "User": getpass.getuser() if self.server == "sshd" else "somebody",
            "IdentityFile": f"{self.folder}/user_key",
            "IdentitiesOnly": "yes",
            "IdentityAgent": "none",
            "UserKnownHostsFile": f"{self.folder}/known_hosts",
        }
        text = "\n".join([*lines, *(f"{name} {value}" for name, value in options.items())])
        (self.folder / "config").write_text(f"{text}\n")

    def stop(self) -> None:
        """End the server and what it runs, as a machine that is switched off."""
        if self.process is not None:
            server = psutil.Process(self.process.pid)
            for process in [server, *server.children(recursive=True)]:
                process.kill()
            self.process.wait()
            self.process = None


def free_port() -> int:
    """A port of the loopback that nothing listened on a moment ago."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


def ssh_processes(pid: int) -> list[int]:
    """The connections of ssh that the process ``pid`` has started and that live."""
    pids = []
    for child in psutil.Process(pid).children():
        with suppress(psutil.Error):  # it has just ended
            if child.name() == "ssh" and "-T" in child.cmdline():
                pids.append(child.pid)
    return pids


def kill(pid: int) -> None:
    """As a lost network ends an ssh."""
    os.kill(pid, signal.SIGKILL)
