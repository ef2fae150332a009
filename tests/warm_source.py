"""A process with all of amptui loaded that forks a Python command line for each request; see `tests.warm`.

Requests come as JSON through the socket that is descriptor 0 at the start. ``{"arguments": [...],
"environment": {...}, "folder": ...}`` comes with the three descriptors that the command line gets for its own
first three, and is answered with its process's number once that is on its terminal; ``{"status": pid}`` with
the exit status of one that has ended, negative for a signal, and with ``runs`` before. Arguments are
``-m amptui ...`` or ``-c PROGRAM ...``; only imports are shared.
"""

import atexit
import fcntl
import gc
import io
import json
import os
import runpy
import socket
import sys
import termios
import threading
import traceback
from importlib import import_module
from pathlib import Path
from typing import NoReturn

MAX_BYTES = 2**20
"""Of a request: an environment is a few KB."""

LOADED = (
    *("cli", "process.launch", "process.training", "process.viewer", "reports.bench"),
    *("diagnosis.summary", "process.plain_lines", "process.followers", "runs.server", "tui.run_screen"),
    "tui.opening",
    *("loops.description", "recipe.loading", "loops.train"),
)
"""What command lines import on the way, by way of which all the rest comes."""


def load() -> None:
    """Load all that a training loads, and what torch loads with its first step."""
    import torch

    for name in LOADED:
        import_module(f"amptui.{name}")
    torch.set_num_threads(1)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    model(torch.zeros(1, 2)).sum().backward()
    optimizer.step()
    # What is loaded is no garbage, and stays shared as long as no collector writes to it.
    gc.collect()
    gc.freeze()


def serve(near: socket.socket) -> None:
    """Answer requests until there are no more; in each process that was forked, run its command line."""
    while True:
        line, descriptors, _flags, _address = socket.recv_fds(near, MAX_BYTES, 3)
        if not line:
            return
        asked = json.loads(line)
        if "status" in asked:
            pid, status = os.waitpid(asked["status"], os.WNOHANG)
            near.send(str(os.waitstatus_to_exitcode(status)).encode() if pid else b"runs")
            continue
        became, tells = os.pipe()
        pid = os.fork()
        if pid == 0:
            near.close()
            become(asked["environment"], Path(asked["folder"]), descriptors)
            os.close(became)
            os.close(tells)
            live(asked["arguments"])
        for descriptor in (*descriptors, tells):
            os.close(descriptor)
        # Until the child closes it: a terminal that is closed before it is the program's tells it nothing.
        os.read(became, 1)
        os.close(became)
        near.send(str(pid).encode())


def become(environment: dict[str, str], folder: Path, descriptors: list[int]) -> None:
    """Be what a process is that was started there: it leads a session, on a terminal if it was given one."""
    os.setsid()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        os.close(descriptor)
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _stream(number, getattr(sys, name))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def live(arguments: list[str]) -> NoReturn:
    """Run the command line and leave as a program does, but for taking apart what was loaded."""
    option, what, *rest = arguments
    sys.argv = [what if option == "-m" else option, *rest]
    status: object = 1
    try:
        if option == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - as Python does
        status = 0
    except SystemExit as left:
        status = left.code
    except BaseException:  # noqa: BLE001 - as Python ends a program
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as multiprocessing does
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else status is not None)


def _stream(number: int, like: io.TextIOWrapper) -> io.TextIOWrapper:
    """As Python opens it: errors and lines for a terminal at once, and all else if it was told so."""
    return io.TextIOWrapper(
        open(number, "wb" if number else "rb", buffering=0 if like.write_through else -1, closefd=False),
        encoding=like.encoding,
        errors=like.errors,
        line_buffering=number == 2 or os.isatty(number),
        write_through=like.write_through,
    )


def begin() -> None:
    """Take the socket, get warm, say so, and serve."""
    near = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    load()
    # A fork copies the thread that forks, and no other.
    if len(list(Path("/proc/self/task").iterdir())) == 1:
        near.send(b"ready")
        serve(near)
    else:
        near.send(b"threads")
    os._exit(0)


if __name__ == "__main__":
    begin()
