"""watch() switches the precision of a loop; the bits are those of a loop that does so by itself."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import amptui
from amptui.guest.run import NO_LONGER_WATCHED
from amptui.loops.compilation import compile_in_place
from amptui.loops.script.switched_optimizer import SwitchedOptimizer
from amptui.monitor.precision_switch import PrecisionSwitch
from amptui.recipe.float8 import why_no_float8
from amptui.records.answers import RequestMade, RequestRefused, RequestTaken
from amptui.records.findings import PrecisionsCompared
from amptui.records.run import RunStarted, Validated
from tests.builders import StepRow, of
from tests.builders import recorded as records
from tests.loops.compiled_runs import keeping, nothing_compiled
from tests.own_loops import Form, Own, ask, switches, watched_run


def test_the_run_is_described_with_its_length_and_its_amp(runs: Path) -> None:
    own = Own()
    with own.watch(precision="bf16") as monitor:
        for _ in monitor.epochs(3):
            own.watched(monitor, "monitor", 4)
            with monitor.validation():
                monitor.log(accuracy=torch.tensor(0.5), top5=0.75)
    journal = records(runs)
    (started,) = of(RunStarted, journal)
    assert (started.observed, started.precision, started.amp_precision) == (False, "bf16", "bf16")
    assert started.growth_interval == 8
    assert set(started.unsupported) == {"tf32", *why_no_float8(torch.device("cpu"))}
    validated = of(Validated, journal)
    assert [record.step for record in validated] == [4, 8, 12]
    assert {record.validation.accuracy for record in validated} == {0.5}
    assert {record.validation.metrics["top5"] for record in validated} == {0.75}


def test_a_comparison_alternates_and_returns_to_the_precision_before(runs: Path) -> None:
    asks = {
        2: RequestMade("comparison", precisions=("fp32", "bf16")),
        200: RequestMade("comparison"),
    }
    journal = watched_run(runs, "scaler", 210, asks)
    assert of(PrecisionsCompared, journal)[-1].rows[1].steps > 0
    steps = of(StepRow, journal)
    assert {record.precision for record in steps} == {"fp32", "bf16"}
    assert {record.precision for record in steps[205:]} == {"fp32"}


def test_a_stop_is_refused_where_the_loop_never_asks(runs: Path) -> None:
    own = Own()
    with own.watch() as monitor:
        ask(monitor, RequestMade("stop", reason="q"))
        with monitor.autocast():
            loss = own.loss(next(own.loader(1)))
        monitor.backward(loss)
        monitor.step()
    assert [record.reason for record in of(RequestRefused, records(runs))] == ["unavailable"]


def test_the_scripts_own_function_saves_and_its_failure_ends_no_training(runs: Path) -> None:
    own, saved = Own(), list[int]()

    def save() -> None:
        if saved:
            raise OSError(28, "No space left on device")
        saved.append(int(own.optimizer.state_dict()["state"][0]["step"]))

    with own.watch(save=save) as monitor:
        own.watched(monitor, "scaler", 6, asks=dict.fromkeys((3, 5), RequestMade("checkpoint")))
    assert saved == [3]
    assert [record.request.kind for record in of(RequestTaken, records(runs))] == ["checkpoint"]
    (refused,) = of(RequestRefused, records(runs))
    assert refused.reason == "failed"
    assert "No space left" in refused.detail
    assert len(of(StepRow, records(runs))) == 6


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_a_closure_that_fails_in_a_new_precision_runs_in_the_one_before(
    precision: str, runs: Path, request: pytest.FixtureRequest
) -> None:
    if precision == "fp8":
        request.getfixturevalue("usable_torchao")
    bare = Own()
    expected = bare.state(bare.bare(10))
    own = Own()

    def fails_in_autocast(batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = nn.functional.cross_entropy(own.model(batch[0]), batch[1])
        if torch.is_autocast_enabled("cpu"):
            raise RuntimeError('"some_kernel" not implemented for BFloat16')
        return loss

    own.loss = fails_in_autocast  # type: ignore[method-assign]
    with own.watch() as monitor:
        own.watched(monitor, "closure", 10, asks=switches({5: precision}))
        assert monitor.precision == "fp32"
        assert own.state(monitor.scaler) == expected
    journal = records(runs)
    assert [record.reason for record in of(RequestRefused, journal)] == ["failed"]
    steps = of(StepRow, journal)
    assert [record.step for record in steps] == list(range(1, 11))
    assert {record.precision for record in steps} == {"fp32"}


@pytest.mark.parametrize(("dtype", "precision"), [("float16", "fp16"), ("bfloat16", "bf16")])
def test_a_precision_may_be_called_by_its_dtype(dtype: Any, precision: str) -> None:
    own = Own()
    with amptui.watch(own.model, own.optimizer, precision=dtype, amp=dtype) as monitor:
        assert monitor.precision == precision


def test_torchs_flags_are_as_before_when_it_closes() -> None:
    own, before = Own(), torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    with own.watch() as monitor:
        own.watched(monitor, "scaler", 6, asks={3: RequestMade("precision", precision="ieee")})
        assert monitor.precision == "ieee"
    assert torch.backends.mkldnn.matmul.fp32_precision == before  # type: ignore[attr-defined]


@pytest.mark.ci  # it compiles
@pytest.mark.torch
def test_a_compiled_model_switches_and_each_precision_is_compiled_once(runs: Path) -> None:
    graphs: list[object] = []
    own = Own()
    order = ["fp32", "bf16", "fp16", "fp32", "bf16", "fp16", "fp32"]
    with nothing_compiled():
        # torch 2.9's own `compile` leaves out a Sequential.
        compile_in_place(own.model, backend=keeping(graphs))
        asks = switches({1 + 4 * at: name for at, name in enumerate(order)})
        steps = of(StepRow, watched_run(runs, "scaler", 28, asks, own))
    assert [record.precision for record in steps] == [name for name in order for _ in range(4)]
    assert len(graphs) == 3


@pytest.mark.parametrize("form", ["scaler", "closure"])
def test_a_fault_refuses_what_was_asked_and_what_is_asked_afterwards(
    form: Form, monkeypatch: pytest.MonkeyPatch, runs: Path
) -> None:
    own = Own()
    with monkeypatch.context() as patch, own.watch() as monitor:

        def before(step: int) -> None:
            if step == 4:
                ask(monitor, RequestMade("trace"))
                patch.setattr(PrecisionSwitch, "begin_step", None)
                ask(monitor, RequestMade("pause", paused=True))
            if step == 5:
                assert monitor._run is not None
                assert isinstance(monitor._run.first, SwitchedOptimizer)
                ask(monitor, RequestMade("precision", precision="bf16"))
                monitor._run.first.control.ask(RequestMade("checkpoint"))  # it came just before the loop knew

        own.watched(monitor, form, 6, before)
    refused = of(RequestRefused, records(runs))
    assert {record.request.kind for record in refused} == {"trace", "pause", "precision", "checkpoint"}
    assert {record.detail for record in refused} == {NO_LONGER_WATCHED}
    assert len(refused) == 4


def test_autocasts_may_be_nested_and_leave_the_state_from_before() -> None:
    own = Own()
    with own.watch(precision="bf16") as monitor, monitor.autocast():
        with monitor.autocast():
            assert torch.get_autocast_dtype("cpu") == torch.bfloat16
        assert torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu")
