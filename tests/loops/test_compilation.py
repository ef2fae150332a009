"""A compiled model: once for each precision, told apart from steps, the same checkpoints, refused in time.

Most of these tests use torch's ``aot_eager`` backend, which traces and guards like the default one and needs
no compiler.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from amptui.cli import main
from amptui.device.failure import explain
from amptui.loops.compilation import MAX_VARIANTS, missing_for_compile
from amptui.loops.resume import newest_checkpoint
from amptui.records.answers import RequestMade
from amptui.records.control import Control
from amptui.records.findings import ModelCompiled, ModulesTraced, XRayTaken
from amptui.records.run import PhaseChanged, PrecisionChanged
from tests.builders import StepRow
from tests.loops.compiled_runs import Uneven, compiled, failing_in_autocast, nothing_compiled
from tests.terminal import KNOBS
from tests.tiny import Log, Tiny, log_of, losses, prepare, resume, switching, train

CPU = torch.device("cpu")

SETTLED_BY = 52
"""From this step on no step is a warm-up step, whatever the times were."""


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    with nothing_compiled():
        yield


@pytest.mark.ci
def test_each_precision_is_compiled_once_however_often_it_is_switched_to() -> None:
    control = Control()
    at = dict(zip(range(2, 40, 2), ["bf16", "fp16", "fp32", "ieee"] * 5, strict=False))
    log = Log(switching(control, at))
    train(compiled(prepare(Tiny(epochs=6))), log, control)
    compilations = log.of(ModelCompiled)
    assert {compilation.what for compilation in compilations} == {"first"}
    places = [(compilation.precision, compilation.training) for compilation in compilations]
    assert len(places) == len(set(places))
    assert all(compilation.seconds > 0 for compilation in compilations)
    switches = {change.current: change.step for change in reversed(log.of(PrecisionChanged))}
    first_steps = {one.precision: one.step for one in compilations if one.training}
    assert first_steps == {"fp32": 1, "bf16": switches["bf16"], "fp16": switches["fp16"]} | {
        name: switches[name] for name in first_steps if name == "ieee"
    }


@pytest.mark.ci
def test_compiling_is_a_phase_of_its_own_and_is_told_before_the_step_it_was_for() -> None:
    """Also of a model that compiles a part of itself; an eager run tells of nothing."""

    class Partly(Tiny):
        def build_model(self) -> nn.Module:
            first, *others = super().build_model().children()
            part: Any = torch.compile(nn.Sequential(*others), backend="aot_eager")
            return nn.Sequential(first, part)

    for prepared in (
        compiled(prepare(Tiny(epochs=1), validation=False)),
        prepare(Partly(epochs=1), validation=False),
    ):
        log = log_of(prepared)
        entries = [entry for entry in log if isinstance(entry, ModelCompiled | StepRow | PhaseChanged)]
        names = [getattr(entry, "phase", type(entry).__name__) for entry in entries]
        assert names[:4] == ["first step", "first step", "ModelCompiled", "StepRow"]
        assert names[4:6] == ["training", "StepRow"]
        (compilation,) = log.of(ModelCompiled)
        assert (compilation.step, compilation.what, compilation.precision) == (1, "first", "fp32")
        assert compilation.training
        assert 0 < compilation.seconds <= (log.of(StepRow)[0].step_seconds or 0)
    assert log_of(prepare(Tiny(epochs=1))).of(ModelCompiled) == []


@pytest.mark.ci
@pytest.mark.torch
def test_a_recompilation_has_torch_s_reason_and_its_step_does_not_count() -> None:
    log = log_of(compiled(prepare(Uneven(samples=8 * SETTLED_BY + 4, epochs=2))))
    first, again = log.of(ModelCompiled)
    assert (first.step, first.what, first.reason) == (1, "first", "")
    assert (again.step, again.what) == (SETTLED_BY + 1, "again")
    assert "expected 8, actual 4" in again.reason
    settling = {record.step: record.settling for record in log.of(StepRow)}
    assert settling[again.step]
    assert not settling[again.step - 1]
    assert not settling[2 * (SETTLED_BY + 1)], "what is compiled already costs no step"


@pytest.mark.torch
def test_a_precision_that_does_not_compile_is_left_and_a_run_that_does_not_says_how_to_go_on() -> None:
    log = log_of(compiled(prepare(Tiny(epochs=1), validation=False), failing_in_autocast), at={2: "bf16"})
    assert {record.precision for record in log.of(StepRow)} == {"fp32"}
    assert [(record.precision, record.what) for record in log.of(ModelCompiled)] == [("fp32", "first")]
    with pytest.raises(Exception, match="no such kernel") as raised:
        train(compiled(prepare(Tiny(epochs=1), precision="bf16"), failing_in_autocast), Log())
    explained = explain(raised.value, doing="in step 1", batch_size=8)
    assert explained.hint == "torch.compile failed: train without --compile, or resume with --compile off"


@pytest.mark.ci
def test_checkpoints_fit_the_eager_and_the_compiled_model(tmp_path: Path) -> None:
    whole = Log()
    train(prepare(Tiny(epochs=2)), whole, checkpoints=tmp_path / "whole")
    names = set(newest_checkpoint(tmp_path / "whole", print).model)
    for first_compiled in (True, False):
        folder = tmp_path / str(first_compiled)
        first, then = prepare(Tiny(epochs=1)), prepare(Tiny(epochs=2))
        compiled(first if first_compiled else then)
        train(first, Log(), checkpoints=folder)
        assert set(newest_checkpoint(folder, print).model) == names
        rest = Log()
        resume(then, folder, rest)
        assert losses(rest) == pytest.approx(losses(whole)[8:], rel=1e-4)


@pytest.mark.torch
def test_probes_see_the_same_in_a_compiled_model() -> None:
    reasons = []
    for prepared in (prepare(Tiny(epochs=1)), compiled(prepare(Tiny(epochs=1)))):
        control = Control()
        control.ask(RequestMade("trace"))
        control.ask(RequestMade("x-ray"))
        log = log_of(prepared, control)
        (xray,), (trace,) = log.of(XRayTaken), log.of(ModulesTraced)
        assert {record.what for record in log.of(ModelCompiled)} <= {"first"}, "nothing was compiled for them"
        reasons.append((xray.layers, xray.loss_fp32, xray.loss_amp, trace.nearest))
    assert reasons[0] == reasons[1]


def test_without_a_compiler_one_line_says_so_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    missing: Any = missing_for_compile(CPU)
    folder = tmp_path / "run"
    arguments = ["train", KNOBS, "--device", "cpu", "--headless", "--run-dir", str(folder), "--compile"]
    assert main(arguments) == 1
    said = f"amptui: --compile needs a compiler: no C++ compiler (no-such-compiler); {missing.hint}\n"
    assert capsys.readouterr().err == said
    assert prepare(Tiny()).model._compiled_call_impl is None, "a run without it needs none"


needs_compiler = pytest.mark.skipif(
    missing_for_compile(CPU) is not None, reason="torch.compile finds no compiler here"
)


@pytest.mark.ci  # it compiles C++ for each precision
@needs_compiler
def test_a_compiled_run_computes_what_an_eager_one_does() -> None:
    import torch._dynamo

    at = {3: "bf16", 6: "fp32", 9: "bf16"}
    eager = log_of(prepare(Tiny()), at=at)
    fast = log_of(prepare(Tiny(), compile_mode="reduce-overhead"), at=at)
    limit: int = torch._dynamo.config.recompile_limit
    assert limit >= MAX_VARIANTS
    assert losses(fast) == pytest.approx(losses(eager), rel=0.02)
    assert [(record.precision, record.training) for record in fast.of(ModelCompiled)] == [
        ("fp32", True),
        ("bf16", True),
        ("fp32", False),
        ("bf16", False),
    ]
