"""Standard streams that were closed before the program began."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import deprecations

PROGRAM = """
import os, sys
from amptui.base.prompt import complain, replace_closed_streams, say
replace_closed_streams()
say("out")
complain("err")
sys.stdout.flush()
sys.stderr.flush()
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
os.write(file, str(file).encode())
"""


@pytest.mark.parametrize(
    ("closed", "out", "err"),
    [
        ("", "out\n", "amptui: err\n"),
        ("<&-", "out\n", "amptui: err\n"),
        (">&-", "", "amptui: err\n"),
        ("2>&-", "out\n", ""),
        ("<&- >&- 2>&-", "", ""),
    ],
)
def test_no_file_of_ours_becomes_a_standard_stream(closed: str, out: str, err: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    shell = f'"$0" {shlex.join(deprecations.options_for_python())} -c "$1" "$2" {closed}'
    done = subprocess.run(
        ["sh", "-c", shell, sys.executable, PROGRAM, str(file)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == (out, err)
    assert int(file.read_text()) > 2
