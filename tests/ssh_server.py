"""An ssh server on the loopback, in a process of its own: runs what it is asked for in a shell, as sshd does.

`python -m tests.ssh_server FOLDER` reads the keys in FOLDER and writes its port to FOLDER/port.
"""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncssh


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
