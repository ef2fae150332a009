"""Another machine for tests, reached by a real ssh: this one, through asyncssh's server on the loopback.

`python -m tests.remote FOLDER` serves with the keys in FOLDER.
"""

import asyncio
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh
import psutil

from tests.checkout import ROOT
from tests.living import wait_until

HOST = "box"


def write_program(path: Path, command: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{command}\n")
    path.chmod(0o755)


@dataclass
class RemoteMachine:
    """An ssh server, and an `ssh` that knows it as `box`."""

    folder: Path
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def prepare(self) -> None:
        self.home.mkdir(parents=True)
        for name in ("host_key", "user_key"):
            key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)]
            subprocess.run(key, check=True)
        self._install_amptui()
        ssh = shutil.which("ssh")
        write_program(self.folder / "here" / "ssh", f'exec {ssh} -F {self.folder}/config "$@"')
        self.start()

    @contextmanager
    def installed(self, command: str) -> Iterator[None]:
        """Make ``command`` what `amptui` is there."""
        write_program(self.folder / "there" / "amptui", command)
        try:
            yield
        finally:
            self._install_amptui()

    def _install_amptui(self) -> None:
        program = f'cd {shlex.quote(str(ROOT))} && exec {sys.executable} -m amptui "$@"'
        write_program(self.folder / "there" / "amptui", program)

    @contextmanager
    def configured(self, *lines: str) -> Iterator[None]:
        """With ``lines`` in the configuration of ssh."""
        self.configure(*lines)
        try:
            yield
        finally:
            self.configure()

    def start(self) -> None:
        (self.folder / "port").unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.remote", str(self.folder)],
            env={
                **os.environ,
                "HOME": str(self.home),
                "PATH": f"{self.folder}/there{os.pathsep}{os.environ['PATH']}",
            },
            cwd=ROOT,
            stderr=subprocess.DEVNULL,  # what asyncssh says of connections that were killed
        )
        wait_until((self.folder / "port").exists, "the ssh server does not listen")
        self.configure()

    def configure(self, *lines: str) -> None:
        """Write the configuration of ssh; ``lines`` come first and so win."""
        port = (self.folder / "port").read_text()
        public = (self.folder / "host_key.pub").read_text()
        (self.folder / "known_hosts").write_text(f"{HOST} {public}")
        options = {
            "HostName": "127.0.0.1",
            "HostKeyAlias": HOST,
            "Port": port,
            "User": "somebody",
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


def ssh_processes(pid: int) -> list[int]:
    """The connections of ssh that the process ``pid`` has started and that live."""
    pids = []
    for child in psutil.Process(pid).children():
        with suppress(psutil.Error):  # it has just ended
            if child.name() == "ssh" and "-T" in child.cmdline():
                pids.append(child.pid)
    return pids


async def _run(process: "asyncssh.SSHServerProcess[bytes]") -> None:
    pipe = asyncio.subprocess.PIPE
    command = ("/bin/sh", "-c", process.command or "")
    child = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    requests = asyncio.create_task(_copy(process.stdin, child.stdin))
    await asyncio.gather(_copy(child.stdout, process.stdout), _copy(child.stderr, process.stderr))
    process.exit(await child.wait())
    await requests


async def _copy(source: Any, target: Any) -> None:
    """Copy to the end of either."""
    with suppress(OSError, asyncssh.Error):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    if isinstance(target, asyncio.StreamWriter):
        target.close()


async def _serve(folder: Path) -> None:
    """Run what is asked for in a shell, as sshd does; write the port to ``folder``."""
    server = await asyncssh.create_server(
        asyncssh.SSHServer,
        "127.0.0.1",
        0,
        server_host_keys=[str(folder / "host_key")],
        authorized_client_keys=str(folder / "user_key.pub"),
        process_factory=_run,
        encoding=None,
    )
    unfinished = folder / "port.unfinished"
    unfinished.write_text(str(server.get_port()))
    unfinished.rename(folder / "port")
    await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
