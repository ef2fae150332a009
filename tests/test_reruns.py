"""A test that fails and passes alone is flaky: the run is green and names it. What fails twice is red."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import reruns
from tests.checkout import ROOT

FLAKY = """
def test_flaky():
    seen = pathlib.Path("seen")
    print("this is the output of the first time")
    first = not seen.exists()
    seen.touch()
    assert not first, "only once"
"""

RED = """
def test_red():
    assert False, "always"
"""

CONFTEST = "from tests.reruns import register\ndef pytest_configure(config): register(config)"

SETTINGS = "[pytest]\naddopts = -m 'not slow' --dist loadfile\nmarkers = slow: left out\n"

COUNT = re.compile(r"=+ .* in \d+\.\d+s =+$")

PROCESSES = pytest.mark.parametrize(
    "processes", [(), pytest.param(("-n", "2"), marks=pytest.mark.ci)], ids=["one process", "two processes"]
)


def run(folder: Path, source: str, *options: str) -> "subprocess.CompletedProcess[str]":
    """What pytest says of a folder with that test file."""
    (folder / "test_it.py").write_text(f"import os, pathlib, pytest\n{source}")
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text(SETTINGS)
    environment = {name: value for name, value in os.environ.items() if name != reruns.NESTED}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def verdict(done: "subprocess.CompletedProcess[str]") -> tuple[int, list[str]]:
    """The exit status, and the lines after pytest's count."""
    lines = done.stdout.splitlines()
    *_, count = [number for number, line in enumerate(lines) if COUNT.match(line)]
    return done.returncode, lines[count + 1 :]


@pytest.mark.ci
@PROCESSES
def test_what_passes_alone_is_flaky_and_the_run_is_green(tmp_path: Path, processes: tuple[str, ...]) -> None:
    done = run(tmp_path, FLAKY + "def test_fine(): pass", *processes)
    assert verdict(done) == (
        0,
        [
            "FLAKY test_it.py::test_flaky: failed once, passed when run again alone",
            "GREEN: nothing failed twice, 1 flaky",
        ],
    )
    assert " 1 passed, 1 flaky in " in done.stdout
    assert "only once" in done.stdout
    assert "this is the output of the first time" in done.stdout
    assert "FAILED" not in done.stdout


@pytest.mark.ci
def test_what_fails_twice_is_red_with_both_outputs(tmp_path: Path) -> None:
    done = run(tmp_path, FLAKY + RED, "-n", "2")
    status, lines = verdict(done)
    assert (status, lines[-1]) == (1, "RED: 1 failed twice, 1 flaky")
    assert "FAILED test_it.py::test_red: failed twice, the second time alone" in lines
    assert done.stdout.count("E       AssertionError: always") == 2
    assert " 1 failed, 1 flaky in " in done.stdout


@pytest.mark.ci
@PROCESSES
def test_nothing_is_said_where_nothing_failed(tmp_path: Path, processes: tuple[str, ...]) -> None:
    done = run(tmp_path, "def test_fine(): pass", *processes)
    assert verdict(done) == (0, [])
    assert "flaky" not in done.stdout.lower()


@pytest.mark.ci
def test_it_is_alone_the_second_time(tmp_path: Path) -> None:
    left_behind = (
        "def test_first(): os.environ['LEFT'] = '1'\ndef test_other(): assert 'LEFT' not in os.environ"
    )
    status, lines = verdict(run(tmp_path, left_behind))
    assert (status, lines[0].split(":")[2]) == (0, "test_other")


@pytest.mark.ci
def test_a_process_that_died_by_a_test_is_followed_by_another(tmp_path: Path) -> None:
    dies = FLAKY.replace('assert not first, "only once"', "first and os._exit(3)")
    assert verdict(run(tmp_path, dies, "-n", "2"))[0] == 0


@pytest.mark.ci
def test_an_error_before_the_test_is_a_failure_as_well(tmp_path: Path) -> None:
    fixture = FLAKY.replace("def test_flaky", "@pytest.fixture\ndef broken") + "def test_it(broken): pass"
    done = run(tmp_path, fixture)
    assert verdict(done)[0] == 0
    assert " 1 flaky in " in done.stdout


@pytest.mark.ci
def test_any_marker_is_run_again(tmp_path: Path) -> None:
    done = run(tmp_path, FLAKY.replace("def test", "@pytest.mark.ci\ndef test"), "-m", "slow")
    assert verdict(done)[0] == 0


@pytest.mark.ci
@pytest.mark.parametrize("parameter", ["a b", "[", "::", "é", "-n"])
def test_any_name_is_run_again(tmp_path: Path, parameter: str) -> None:
    named = f"@pytest.mark.parametrize('value', [{parameter!r}])" + FLAKY.replace("()", "(value)", 1)
    assert verdict(run(tmp_path, named))[0] == 0


@pytest.mark.ci
def test_a_test_that_is_skipped_the_second_time_has_not_passed(tmp_path: Path) -> None:
    skipped = FLAKY.replace("first = ", 'first = seen.exists() and pytest.skip("again") or ')
    assert verdict(run(tmp_path, skipped))[0] == 1


@pytest.mark.ci
def test_what_a_library_says_as_the_process_ends_is_no_failure(tmp_path: Path) -> None:
    says = "import atexit\natexit.register(os.write, 2, b'nanobind: leaked 3 types!\\n')\n"
    assert verdict(run(tmp_path, says + FLAKY))[0] == 0


@pytest.mark.ci
def test_many_failures_are_no_accident(tmp_path: Path) -> None:
    many = f"@pytest.mark.parametrize('number', range({reruns.MAX_RERUNS + 1}))" + RED.replace(
        "()", "(number)"
    )
    done = run(tmp_path, many)
    assert verdict(done) == (1, [])
    assert f"{reruns.MAX_RERUNS + 1} failed" in done.stdout


@pytest.mark.ci
@pytest.mark.parametrize("options", [("-x",), ("--maxfail", "1", "-n", "2")])
def test_a_run_that_stopped_early_is_never_green(tmp_path: Path, options: tuple[str, ...]) -> None:
    assert verdict(run(tmp_path, FLAKY + RED, *options))[0] != 0


@pytest.mark.ci
def test_files_that_cannot_be_read_are_not_made_up_for(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text("import nothing_of_this_name")
    status, lines = verdict(run(tmp_path, FLAKY, "--continue-on-collection-errors"))
    assert (status, lines) == (1, [])


@pytest.mark.ci
def test_a_law_that_an_example_disproved_is_red(tmp_path: Path) -> None:
    law = "import hypothesis\n@hypothesis.given(hypothesis.strategies.just(1))" + FLAKY.replace(
        "()", "(n)", 1
    )
    done = run(tmp_path, law)
    assert verdict(done) == (1, [])


@pytest.mark.ci
def test_a_pytest_within_a_test_leaves_it_to_the_outer_one(tmp_path: Path) -> None:
    command = "subprocess.run([sys.executable, '-m', 'pytest', 'within'], check=True)"
    inner = f"import subprocess, sys\ndef test_inner():\n    {command}"
    (tmp_path / "within").mkdir()
    (tmp_path / "within" / "test_within.py").write_text(f"import pathlib\n{FLAKY}")
    status, lines = verdict(run(tmp_path, inner, "test_it.py"))
    assert (status, lines[0].split(":")[2]) == (0, "test_inner")
