"""Real measurements of small models on the CPU, from the command line to what they print."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from amptui.base.errors import UsageError
from amptui.cli import main
from amptui.device.failure import explain
from amptui.loops.compilation import missing_for_compile
from amptui.loops.setup import build_model
from amptui.monitor.ab_test import Ratio
from amptui.recipe.float8 import NO_LAYER
from amptui.recipe.precision import Tf32Flags
from amptui.records.findings import Float16Window, ModelCompiled, ModulesTraced, PrecisionsCompared
from amptui.records.run import EpochFinished, RunStarted
from amptui.reports.bench.measure import plan_precisions
from amptui.reports.doctor import precisions
from tests.builders import StepRow, read
from tests.checkout import ROOT
from tests.terminal import Terminal, amptui_command
from tests.tiny import NO_TF32, Tiny
from tests.warm import WarmSource

CPU = torch.device("cpu")
NO_MEMORY = str(explain(MemoryError(), doing="in step 1", batch_size=32, precision=None))
pytestmark = pytest.mark.usefixtures("scratch")

LIMITS = str(ROOT / "tests" / "recipes" / "limits.py")


@pytest.fixture(autouse=True)
def slowdown(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Says how slow float16 is here, which is the processor's affair: so slow that it is left out."""

    def be(times: float) -> None:
        speed = {"fp16": Ratio(value=1 / times, low=None, high=None)}
        monkeypatch.setattr(precisions, "measure", lambda *_args, **_options: speed)

    be(13.0)
    return be


PRECISIONS = ("--precisions", "fp32,bf16")
"""For a process of its own, which looks how slow float16 is."""


def bench(*options: str, model: str = LIMITS) -> int:
    return main(["bench", model, "--device", "cpu", "--rounds", "2", *options])


@pytest.mark.ci
def test_the_table_has_every_precision_and_says_why_the_others_have_no_row(
    capsys: pytest.CaptureFixture[str], scratch: Path
) -> None:
    assert bench() == 0
    lines = capsys.readouterr().out.splitlines()
    heads = [line.split("  ")[0] for line in lines]
    assert [head for head in heads if head in ("FP32", "AMP bf16", "AMP fp16")] == ["FP32", "AMP bf16"]
    assert any(line.startswith("limits on ") and line.endswith("noise (synthetic data)") for line in lines)
    assert any("2 rounds of 20 steps each" in line for line in lines)
    assert "not measured: FP32 (TF32 off): the same as FP32 on a CPU" in lines
    assert f"not measured: TF32: {NO_TF32}" in lines
    assert list(scratch.glob("amptui-*")) == []
    assert not (Path.home() / ".local").exists()


@pytest.mark.ci
def test_json_is_one_object_and_a_precision_that_fails_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    flags, precisions = Tf32Flags.current(), "fp32,bf16,fp16,ieee"
    assert bench("--json", "--precisions", precisions, "--seed", "3", "--set", "refuses=bfloat16") == 0
    assert Tf32Flags.current() == flags
    (line,) = capfd.readouterr().out.splitlines()
    content = json.loads(line, parse_constant=pytest.fail)
    (measured,) = content["measured"]
    assert (content["model"], content["seed"], content["interrupted"]) == (LIMITS, 3, False)
    assert content["machine"]["device"] == "cpu"
    assert content["versions"]["torch"] == torch.__version__
    assert content["data"] == {"name": "noise", "real": False, "samples": 640}
    assert content["left_out"] == {}
    assert (measured["batch_size"], measured["baseline"], measured["rounds"]) == (8, "fp32", 2)
    assert (measured["ended"], measured["error"], list(measured["failed"])) == ("limit", None, ["bf16"])
    assert "not implemented for bfloat16" in measured["failed"]["bf16"]
    assert [row["precision"] for row in measured["rows"]] == ["fp32", "fp16", "ieee"]
    baseline, other, _ = measured["rows"]
    assert (baseline["speedup"], baseline["steps"]) == (None, 40)
    assert (other["blocks"], other["peak_allocated_bytes"]) == (2, None)
    assert other["speedup"] > 0
    assert other["samples_per_second"] > 0
    assert len(measured["cards"]) == 2


@pytest.mark.ci
def test_a_batch_that_does_not_fit_is_a_line_and_the_next_one_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert bench("--batch-size", "8,32,16", "--set", "max_samples=16", "--run-dir", str(folder)) == 0
    assert {"batch-8", "batch-16"} <= {path.name for path in folder.iterdir()}
    captured = capsys.readouterr()
    assert captured.err == f"amptui: batch 32: {NO_MEMORY}\n"
    lines = captured.out.splitlines()
    heads = [result[1] for line in lines if (result := re.match(r"(batch \d+): ", line))]
    assert heads == ["batch 8", "batch 32", "batch 16"]
    assert f"batch 32: {NO_MEMORY}" in lines
    assert [line.split()[0] for line in lines if " ms " in line] == ["FP32", "AMP"] * 2
    assert bench("--set", "max_samples=4") == 1, "nothing could be measured"
    captured = capsys.readouterr()
    assert captured.err == f"amptui: {NO_MEMORY}\n"
    assert f"batch 8: {NO_MEMORY}" in captured.out
    assert bench("--set", "mostsamples=4") == 2
    assert "Limits has no option 'mostsamples'" in capsys.readouterr().err


@pytest.mark.ci
def test_a_training_that_fails_on_the_way_tells_what_was_known_and_has_its_status(
    capsys: pytest.CaptureFixture[str],
) -> None:
    knobs = str(Path(LIMITS).with_name("knobs.py"))
    options = ["--set", "step_ms=0", "--set", "trouble=loss", "--set", "at=150"]
    assert main(["bench", knobs, "--device", "cpu", *options]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("amptui: ValueError: bad label in batch 150")
    assert "ended early: ValueError: bad label in batch 150" in captured.out
    assert "AMP bf16" in captured.out


@pytest.mark.ci
def test_a_kept_run_was_looked_at_by_no_probe(tmp_path: Path) -> None:
    assert bench("--run-dir", str(tmp_path / "run"), "--channels-last") == 0
    records = list(read(tmp_path / "run" / "journal.jsonl"))
    steps = [record for record in records if isinstance(record, StepRow)]
    assert len([record for record in records if isinstance(record, RunStarted)]) == 1
    assert not [record for record in records if isinstance(record, Float16Window | ModulesTraced)]
    assert {record.grad_norm for record in steps} == {None}
    epochs = [record for record in records if isinstance(record, EpochFinished)]
    assert {record.validation for record in epochs} == {None}
    (*_, last) = (record for record in records if isinstance(record, PrecisionsCompared))
    assert (last.over, last.rounds, last.most_rounds, last.reason) == (True, 2, 2, "limit")
    content = json.loads((tmp_path / "run" / "run.json").read_text())["asked"]
    assert (content["channels_last"], content["probes"]) == (True, False)
    assert not (tmp_path / "run" / "run.sock").exists()


@pytest.mark.ci
def test_a_schedule_is_as_long_as_the_benchmark_and_not_longer(tmp_path: Path) -> None:
    model = tmp_path / "cycled.py"
    model.write_text(
        "from torch.optim.lr_scheduler import OneCycleLR\n"
        "from tests.recipes.limits import Limits\n\nclass Cycled(Limits):\n"
        "    def build_scheduler(self, optimizer, total_steps):\n"
        "        return OneCycleLR(optimizer, max_lr=0.1, total_steps=total_steps)\n"
    )
    assert (
        bench("--run-dir", str(tmp_path / "run"), "--rounds", "1", "--set", "epochs=1", model=str(model)) == 0
    )
    records = list(read(tmp_path / "run" / "journal.jsonl"))
    (started,) = [record for record in records if isinstance(record, RunStarted)]
    assert started.total_steps == 400
    lrs = [record.lr for record in records if isinstance(record, StepRow) if record.lr is not None]
    assert max(lrs) > 5 * lrs[0], "it passes through its warm-up"


@pytest.mark.ci
def test_ctrl_c_tells_what_is_known_and_leaves_the_line_of_progress_nowhere(warm: WarmSource) -> None:
    knobs = str(Path(LIMITS).with_name("knobs.py"))
    command = amptui_command("bench", knobs, "--device", "cpu", "--set", "uneven=yes", *PRECISIONS)
    with Terminal(command, warm=warm) as terminal:
        terminal.wait_for(r"batch 8  round +\d+ of at most 24  .*AMP bf16 \d\.\d\d×")
        terminal.press("\x03")
        assert terminal.wait() == 130
        assert "ended early" in terminal.text
        assert "steps, knobs, batch 8" in terminal.text
        assert "of at most" not in terminal.text


# ------------------------------------------------------------------------------------- FP8


@pytest.mark.ci
@pytest.mark.usefixtures("usable_torchao")
def test_where_the_hardware_has_float8_it_is_measured_beside_the_others(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert bench("--json", "--precisions", "fp32,bf16,fp8") == 0
    content = json.loads(capfd.readouterr().out)
    (measured,) = content["measured"]
    assert [row["precision"] for row in measured["rows"]] == ["fp32", "bf16", "fp8"]
    assert all(row["steps"] == 40 for row in measured["rows"])
    assert measured["float8"]["names"] == ["1"]
    (flops,) = [item["counted"] for item in measured["flops"] if item["counted"]["precision"] == "fp8"]
    assert flops["flops_by_type"]["float8"] > 0


@pytest.mark.ci
@pytest.mark.usefixtures("usable_torchao")
def test_a_model_without_a_layer_for_float8_is_measured_without_it_and_the_reason_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    narrow = tmp_path / "narrow.py"
    narrow.write_text(
        "from torch import nn\nfrom tests.recipes.limits import Limits\n\nclass Narrow(Limits):\n"
        "    def build_model(self):\n        return nn.Sequential(nn.Flatten(), nn.Linear(16, 4))\n"
    )
    assert bench("--json", "--precisions", "fp32,bf16,fp8", model=str(narrow)) == 0
    content = json.loads(capfd.readouterr().out)
    assert content["left_out"] == {"fp8": NO_LAYER}
    assert [row["precision"] for row in content["measured"][0]["rows"]] == ["fp32", "bf16"]
    assert content["measured"][0]["float8"] is None
    assert bench("--precisions", "fp32,fp8", model=str(narrow)) == 2
    captured = capfd.readouterr()
    assert f"nothing to compare; fp8: {NO_LAYER}" in captured.err
    assert "the speed of" not in captured.out


# ------------------------------------------------------------------------------------- parts


@pytest.mark.parametrize(("times", "planned"), [(1.99, True), (2.01, False)])
def test_a_cpu_measures_float16_if_it_is_not_slow_at_it_and_no_float8(
    times: float, planned: bool, slowdown: Callable[[float], None]
) -> None:
    slowdown(times)
    plan = plan_precisions(None, CPU)
    assert plan.precisions == (("fp32", "fp16", "bf16") if planned else ("fp32", "bf16"))
    assert {*plan.precisions, *plan.left_out} == {"fp32", "ieee", "tf32", "fp16", "bf16", "fp8"}
    assert all(plan.left_out.values())


def test_what_was_asked_for_and_cannot_run_is_left_out_with_its_reason() -> None:
    plan = plan_precisions(("bf16", "tf32", "ieee"), CPU)
    assert (plan.precisions, plan.left_out) == (("bf16", "ieee"), {"tf32": NO_TF32})
    with pytest.raises(UsageError, match=f"nothing to compare; tf32: {NO_TF32}"):
        plan_precisions(("fp32", "tf32"), CPU)


def test_channels_last_is_the_format_of_the_weights() -> None:
    class Convolving(Tiny):
        def build_model(self) -> torch.nn.Module:
            return torch.nn.Conv2d(3, 8, 3)

    weights = [
        build_model(Convolving(), CPU, first_batch=tuple, channels_last=last).get_parameter("weight")
        for last in (False, True)
    ]
    assert [each.is_contiguous(memory_format=torch.channels_last) for each in weights] == [False, True]


needs_compiler = pytest.mark.skipif(
    missing_for_compile(CPU) is not None, reason="torch.compile finds no compiler here"
)


@pytest.mark.ci  # it compiles C++ for each precision
@needs_compiler
def test_with_compile_each_precision_is_compiled_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert bench("--json", "--compile", "--rounds", "3", "--run-dir", str(folder)) == 0
    content = json.loads(capfd.readouterr().out)
    (measured,) = content["measured"]
    assert (content["compile_mode"], measured["baseline"], measured["rounds"]) == ("default", "fp32", 3)
    assert measured["failed"] == {}
    assert [row["precision"] for row in measured["rows"]] == ["fp32", "bf16"]
    assert all(row["steps"] == 60 for row in measured["rows"])
    assert set(measured["compile_seconds"]) == {"fp32", "bf16"}
    result = [item for item in read(folder / "journal.jsonl") if isinstance(item, ModelCompiled)]
    seconds = sum(item.seconds for item in result)
    assert sum(measured["compile_seconds"].values()) == pytest.approx(seconds)
