"""The command from its words to what it prints, on a small model and on a script, trained for real."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from amptui.cli import build_parser, main
from amptui.command.parser import is_script
from amptui.monitor.ab_test import Ratio
from amptui.recipe.precision import Tf32Flags
from amptui.reports.doctor import precisions
from tests.checkout import ROOT

CPU = torch.device("cpu")

LIMITS = str(ROOT / "tests" / "recipes" / "limits.py")

QUICK = ("--device", "cpu", "--minutes", "0.04", "--loss-steps", "40")


@pytest.fixture(autouse=True)
def _slow_float16(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    speed = {"fp16": Ratio(value=1 / 13, low=None, high=None)}
    monkeypatch.setattr(precisions, "measure", lambda *_args, **_options: speed)


@pytest.mark.ci
def test_a_model_gets_a_recommendation_and_nothing_is_written(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags, default = Tf32Flags.current(), torch.get_default_dtype()
    assert main(["advise", LIMITS, *QUICK, "--json"]) == 0
    content: dict[str, Any] = json.loads(capfd.readouterr().out, parse_constant=pytest.fail)
    assert content["recommended"] in ("fp32", "bf16")
    assert (content["model"], content["interrupted"], content["batch_size"]) == ("limits", False, 8)
    bf16 = next(item for item in content["candidates"] if item["precision"] == "bf16")
    fp16 = next(item for item in content["candidates"] if item["precision"] == "fp16")
    if bf16["measured"] is not None:  # else the machine is busy
        assert bf16["measured"]["speedup"] > 0
    by_subject = {item["subject"]: item for item in bf16["answer"]["findings"]}
    assert by_subject["agreement"]["state"] == "agree"
    assert bf16["answer"]["safety"] in ("safe", "no trouble")
    if bf16["loss"] is None:  # the machine is busy
        assert any(text.startswith("loss in each precision: ") for text in content["not_measured"])
    else:
        assert len(content["losses"]["bf16"]) == len(content["losses"]["fp32"]) >= 2
        assert content["loss_steps"] == 40
        assert bf16["loss"]["state"] in ("same", "lower")
    assert fp16["excluded"]["detail"].startswith("a float16 matrix product takes 13 times as long")
    assert list(tmp_path.iterdir()) == [scratch]
    assert list(scratch.glob("amptui-*")) == []
    assert (Tf32Flags.current(), torch.get_default_dtype()) == (flags, default)


def test_a_script_that_amptui_cannot_watch_is_told_what_to_do(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('hello')")
    assert main(["advise", str(script)]) == 1
    *_, said, lines = capfd.readouterr().err.splitlines()
    assert said == "amptui:   hello"
    assert "exited with status 0 before amptui could watch a training; let amptui.watch()" in lines


def test_a_torch_that_does_not_load_is_one_line(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('hello')")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["advise", str(script)]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.endswith("(while importing torch); install torch for this Python")


@pytest.mark.parametrize(
    ("words", "told", "status"),
    [
        (["mnist-dep"], "no model named 'mnist-dep'; did you mean mnist-deep?", 2),
        (["missing.py"], "no model file missing.py", 2),
        ([], "the following arguments are required: MODEL", 2),
        (["mnist-deep", "more"], "'more' follows a model; only a script has arguments", 2),
        (["mnist-deep", "--precisions", "fp32"], "nothing to compare FP32 with", 2),
        (["mnist-deep", "--precisions", "fp4"], "'fp4' is not one of", 2),
        (["mnist-deep", "--minutes", "0"], "'0' is not a number above 0", 2),
        (["mnist-deep", "--set", "wdth=1"], "has no option 'wdth'", 2),
        (["--seed", "3", "SCRIPT"], "--seed is for models", 2),
        (["--lr", "3", "SCRIPT"], "--lr is for models", 2),
        (["mnist-deep", "--loss-steps", "5"], "'5' is not 0, or a whole number from 40 on", 2),
    ],
)
def test_what_cannot_be_done_is_one_line(
    words: list[str], told: str, status: int, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text("print(1)")
    assert main(["advise", *(str(script) if word == "SCRIPT" else word for word in words)]) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line


# -------------------------------------------------------------------- a script or a model file


SOURCES = {
    "an experiment": ("from amptui import Experiment", False),
    "watch": ("import amptui\nmonitor = amptui.watch(Net(), o)", True),
    "imported watch": ("from amptui import watch as w\nw(Net(), o)", True),
    "imported in brackets": ("from amptui import (\n    observe,\n)\nobserve()", True),
    "observe": ("import amptui as a\na.observe(Net(), o)", True),
    "a framework": ("import amptui.lightning\nt = T(callbacks=[amptui.lightning.PrecisionMonitor()])", True),
    "another watch": ("import amptui\nother.watch(1)", False),
    "another Precision": ("import amptui\nfrom metrics import Precision\np = Precision()", False),
}


@pytest.mark.parametrize(("source", "expected"), SOURCES.values(), ids=SOURCES)
def test_a_script_is_known_by_its_source(tmp_path: Path, source: str, expected: bool) -> None:
    path = tmp_path / "file.py"
    path.write_text(f"class Net(nn.Module): ...\n{source}\n")
    assert is_script(str(path)) is expected
    path.write_text("class Net: ...\n")
    assert is_script(str(path)), "it has no model"


def test_what_follows_a_script_is_its_own_and_options_after_a_model_are_ours() -> None:
    script = str(ROOT / "demo" / "own_loop.py")
    options = build_parser().parse_args(
        ["advise", "--minutes", "2", script, "--minutes", "9", "-x", "--", "y"]
    )
    assert (options.minutes, options.arguments) == (2.0, ["--minutes", "9", "-x", "--", "y"])
    options = build_parser().parse_args(["advise", "mnist-deep", "--minutes", "9"])
    assert (options.minutes, options.arguments) == (9.0, [])
