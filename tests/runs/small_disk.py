"""Scripts that run where a real disk is full: a small one of their own, which needs the right to mount it."""

import subprocess
import sys
from pathlib import Path

import pytest

_MOUNTED = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000
def must(status):
    if status:
        print(os.strerror(ctypes.get_errno()))
        sys.exit(77)
must(libc.unshare(CLONE_NEWNS))
must(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None))
must(libc.mount(b"tmpfs", os.fsencode(sys.argv[1]), b"tmpfs", 0, b"size=64k"))
exec(sys.stdin.read())
"""


def run(folder: Path, script: str) -> None:
    """Run ``script`` with 64 KiB of disk at ``folder``, its ``sys.argv[1]``; skip where that is forbidden."""
    done = subprocess.run(
        [sys.executable, "-c", _MOUNTED, str(folder)],
        input=script,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip(f"a small disk needs the right to mount one: {done.stdout.strip()}")
    assert done.returncode == 0, done.stderr
