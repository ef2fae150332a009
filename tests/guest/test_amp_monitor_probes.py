"""What the probes of watch() see: the X-ray, traces of modules, the float16 window, operations.

They change no bit.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from amptui.records.answers import RequestMade, RequestTaken
from amptui.records.findings import Float16Window, FlopsCounted, ModulesTraced, XRayTaken
from amptui.records.run import Note
from tests.builders import StepRow, of, read
from tests.builders import recorded as records
from tests.loops.compiled_runs import nothing_compiled
from tests.own_loops import Form, Own, switches, watched_run


@pytest.mark.parametrize(("precision", "compared"), [("fp32", "bf16"), ("fp8", "fp8")])
def test_an_xray_runs_the_closures_again_and_changes_no_bit(
    precision: str, compared: str, runs: Path, request: pytest.FixtureRequest
) -> None:
    if precision == "fp8":
        request.getfixturevalue("usable_torchao")
    bare = Own(accumulate=2)
    with bare.watch(precision=precision) as monitor:
        bare.watched(monitor, "closure", 12)
        expected = bare.state(monitor.scaler)
    first = set(runs.iterdir())
    own = Own(accumulate=2)
    with own.watch(precision=precision) as monitor:
        own.watched(monitor, "closure", 12, asks={4: RequestMade("x-ray")})
        assert own.state(monitor.scaler) == expected
    (run,) = set(runs.iterdir()) - first
    journal = list(read(run / "journal.jsonl"))
    (xray,) = of(XRayTaken, journal)
    assert (xray.step, xray.precision) == (4, compared)
    if precision == "fp32":
        assert len(xray.layers) == 2
        assert [record.loss for record in of(StepRow, journal)][3] == pytest.approx(xray.loss_fp32)
    assert of(RequestTaken, journal)


@pytest.mark.parametrize(("form", "accumulate"), [("monitor", 1), ("scaler", 3), ("closure", 3)])
def test_a_trace_names_the_modules_and_leaves_no_hook_between_steps(
    form: Form, accumulate: int, runs: Path
) -> None:
    own = Own(accumulate=accumulate)
    hooked: list[bool] = []
    with own.watch() as monitor:

        def before(_step: int) -> None:
            hooked.append(any(module._forward_hooks for module in own.model.modules()))

        own.watched(monitor, form, 12, before, asks={3: RequestMade("trace")})
    (traced, *_) = of(ModulesTraced, records(runs))
    assert traced.asked
    assert traced.step == 4
    assert {module.kind for module in traced.nearest} >= {"Linear"}
    assert not any(hooked)
    assert of(RequestTaken, records(runs))


def test_a_trace_of_the_last_steps_is_told_when_the_loop_ends(runs: Path) -> None:
    journal = watched_run(runs, "monitor", 60, {59: RequestMade("trace")})
    assert [record.step for record in of(ModulesTraced, journal) if record.asked] == [60]
    assert [record.request.kind for record in of(RequestTaken, journal)] == ["trace"]


@pytest.mark.parametrize("form", ["scaler", "closure"])
def test_a_trace_of_a_skipped_step_has_the_scale_that_it_ran_with(form: Form, runs: Path) -> None:
    journal = watched_run(runs, form, 16, {13: RequestMade("trace")}, precision="fp16")
    traced = next(record for record in of(ModulesTraced, journal) if record.asked)
    scales = {record.step: record.loss_scale for record in of(StepRow, journal)}
    assert traced.step == 14
    assert traced.loss_scale == scales[14] == 2 * (scales[15] or 0)


@pytest.mark.parametrize(("form", "accumulate"), [("monitor", 3), ("scaler", 1), ("closure", 3)])
def test_a_histogram_is_measured_in_the_next_step(form: Form, accumulate: int, runs: Path) -> None:
    asks = {30: RequestMade("histogram")}
    journal = watched_run(runs, form, 40, asks, Own(accumulate=accumulate), precision="fp16")
    assert [record.request.kind for record in of(RequestTaken, journal)] == ["histogram"]
    (window,) = [record for record in of(Float16Window, journal) if record.step == 31]
    scales = {record.step: record.loss_scale for record in of(StepRow, journal)}
    assert (window.hypothetical, window.loss_scale) == (False, scales[31])


def test_the_float16_window_is_of_the_whole_steps_gradients(runs: Path) -> None:
    window = of(Float16Window, watched_run(runs, "monitor", 8, own=Own(accumulate=2)))[0]
    assert window.hypothetical
    assert window.step >= 2  # in the first step nobody knows how many passes there are


# Operations of train_step() are counted in one step of each precision.


@pytest.mark.torch
def test_one_step_of_each_precision_has_the_number_of_operations_that_torch_counts(runs: Path) -> None:
    with nothing_compiled():
        journal = watched_run(runs, "closure", 30, switches({21: "bf16"}))
    fp32, bf16 = of(FlopsCounted, journal)
    own = Own()
    with FlopCounterMode(display=False) as counter:
        own.loss(next(own.loader(1))).backward()
    flops = counter.get_total_flops()
    assert fp32.flops == bf16.flops == flops > 0
    assert (fp32.precision, fp32.samples, fp32.flops_by_type) == ("fp32", 8, {"float32": flops})
    assert (bf16.precision, bf16.samples, bf16.flops_by_type) == ("bf16", 8, {"bfloat16": flops})
    assert not fp32.uncounted
    settling = {record.step: record.settling for record in of(StepRow, journal)}
    assert settling[fp32.step]
    assert settling[bf16.step]


def counted_with(own: Own, call: Callable[[], object]) -> None:
    """Have ``call`` called in the passes in which operations are counted, after dropout has drawn."""
    loss = own.loss

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        result = loss(batch)
        if torch._C._len_torch_dispatch_stack():
            call()
        return result

    own.loss = loss_of  # type: ignore[method-assign]


def test_a_model_that_cannot_be_counted_costs_one_note_and_no_bit(runs: Path) -> None:
    bare = Own()
    expected = bare.state(bare.bare(15))
    own = Own()
    counted_with(own, lambda: 1 // 0)
    with nothing_compiled(), own.watch() as monitor:
        own.watched(monitor, "closure", 15)
        assert own.state(monitor.scaler) == expected
    journal = records(runs)
    assert [note.severity for note in of(Note, journal) if note.severity != "info"] == ["warning"]
    assert not of(FlopsCounted, journal)
    assert [record.step for record in of(StepRow, journal)] == list(range(1, 16))


def test_an_error_of_the_scripts_own_passes_through_a_counted_step(runs: Path) -> None:
    own, loss, counted = Own(), Own.loss, list[bool]()

    def fails(batch: tuple[Tensor, Tensor]) -> Tensor:
        if counted:
            raise RuntimeError("my own")
        return loss(own, batch)

    def fails_first() -> None:
        counted.append(True)
        raise RuntimeError("my own")

    own.loss = fails  # type: ignore[method-assign]
    counted_with(own, fails_first)
    with nothing_compiled(), pytest.raises(RuntimeError, match=r"^my own$"):
        watched_run(runs, "closure", 15, own=own)
    assert not [note for note in of(Note, records(runs)) if "FLOP" in note.text]


def test_where_anything_is_compiled_no_step_runs_eagerly_to_be_counted(runs: Path) -> None:
    own = Own()
    with nothing_compiled(), own.watch() as monitor:
        compiled = torch.compile(own.loss, backend="eager")
        for batch in monitor.steps([*own.loader(5)]):
            monitor.train_step(partial(compiled, batch))
    journal = records(runs)
    assert len(of(StepRow, journal)) == 5
    assert not of(FlopsCounted, journal)
