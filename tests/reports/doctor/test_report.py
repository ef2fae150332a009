"""The whole report as a person and as a script reads it, on this machine and on sick ones."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from amptui.device.accelerator import Properties
from amptui.records.samples import GpuSample
from amptui.reports.doctor.gpus import NvmlLook, check_gpu, check_nvml
from amptui.reports.doctor.machine import check_folder, check_terminal
from amptui.reports.doctor.report import Check, PlainReport, Section, examine, fine
from tests import poison
from tests.terminal import Terminal

PROGRAM = "import sys; from amptui.reports.doctor import doctor; sys.exit(doctor(json='--json' in sys.argv))"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture(scope="session")
def broken_torch(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder for ``PYTHONPATH`` with a torch that does not load."""
    folder = tmp_path_factory.mktemp("packages")
    (folder / "torch.py").write_text("raise ImportError('libtorch.so: cannot open \\x1b[31m it')")
    return str(folder)


@pytest.mark.ci
def test_a_machine_that_trains_has_status_0_and_every_problem_its_hint(fake_drivers: Path) -> None:
    done = run("--json", LD_LIBRARY_PATH=str(fake_drivers), CUDA_VISIBLE_DEVICES="", FAKE_NVML_GPUS="1")
    assert (done.returncode, done.stderr) == (0, "")
    *checks, verdict = map(json.loads, done.stdout.splitlines())
    assert {check["type"] for check in checks} == {"Check"}
    assert all(check["hint"] for check in checks if check["severity"] in ("warning", "error"))
    by_name = {check["name"]: check for check in checks}
    assert "unexamined" not in by_name
    if torch.version.cuda is not None:
        assert "CUDA_VISIBLE_DEVICES='' hides every GPU" in by_name["cuda"]["text"]
    assert by_name["nvml"]["text"].startswith("NVML: Fake GPU: ")
    assert re.search(r"[\d.]+× the speed of FP32", by_name["bf16"]["text"])
    warnings = sum(check["severity"] == "warning" for check in checks)
    assert verdict == {
        "type": "Verdict",
        "can_train": True,
        "device": "cpu",
        "warnings": warnings,
        "errors": 0,
    }


def test_a_torch_that_does_not_load_is_told_and_so_is_all_the_rest(broken_torch: str) -> None:
    done = run(PYTHONPATH=broken_torch, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.isascii()
    assert "  x cannot import torch: ImportError: libtorch.so: cannot open ?[31m it\n" in done.stdout
    assert "      -> reinstall torch in this environment\n" in done.stdout
    assert re.search(r"\nfolders\n  [v!] runs ", done.stdout)
    assert "\nCUDA\n" not in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Training cannot run here: fix 1 error first (x)")


@pytest.mark.ci
def test_runs_that_cannot_be_kept_have_status_1(broken_torch: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run("--json", PYTHONPATH=broken_torch, HOME=str(tmp_path / "file"))
    *checks, verdict = map(json.loads, done.stdout.splitlines())
    assert [check["name"] for check in checks if check["severity"] == "error"] == ["torch-loads", "runs"]
    assert (done.returncode, verdict["can_train"], verdict["errors"]) == (1, False, 2)


@pytest.mark.ci
def test_a_terminal_gets_colours_and_lines_of_its_width(broken_torch: str) -> None:
    command = [sys.executable, "-c", PROGRAM]
    with Terminal(command, size=(60, 70), env={"PYTHONPATH": broken_torch, "NO_COLOR": ""}) as terminal:
        terminal.wait_for(r"Training cannot run here")
        terminal.wait()
    assert b"\x1b[91m\xe2\x9c\x96\x1b[0m cannot import torch" in terminal.written
    said = re.sub(r"\x1b\[\d+m", "", terminal.written.decode()).splitlines()
    assert max(len(line.rstrip()) for line in said if "/" not in line) <= 60  # a path is not broken


def fails() -> Iterator[Check]:
    yield fine("first", "seen")
    raise ZeroDivisionError("nobody\nexpected this")


def test_a_look_that_fails_costs_no_other() -> None:
    sick, well = Section("sick", fails), Section("well", lambda: [fine("b", "seen")])
    (title, check), after = examine([sick, well])
    assert (title, check.severity) == ("sick", "warning")
    assert check.text == "sick could not be checked: ZeroDivisionError: nobody"
    assert after == ("well", fine("b", "seen"))


def test_what_drivers_folders_and_environments_say_steers_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts, show = poison.words(), PlainReport()
    for _ in poison.STEERING:
        kind = check_terminal(next(texts), (80, 24))[0]
        gpu = Properties(name=next(texts), memory_bytes=1, compute_capability=(9, 0))
        sample = GpuSample(uuid="GPU-1", name=next(texts))
        found = NvmlLook(samples=(sample,), note=next(texts))
        folder = tmp_path / next(texts).replace("\0", "").encode("utf-8", "replace").decode()[:40]
        checks = [kind, check_gpu("cuda:0", gpu, []), check_folder("data-folder", folder)]
        for check in [*checks, *check_nvml(found, expected=True)]:
            show.check("section", check)
    written = capsys.readouterr().out
    assert "5;41mblink" in written
    assert not poison.strange_in_lines(written.encode("utf-8", "surrogatepass"))
