"""Generated training loops, each watched in one of the three ways: what is recorded is true, or absent.

The law: loss, precision, loss scale, skips, learning rates and the number of steps of each optimizer are
recorded as they were, or as unknown with a reason; the training keeps its bits; torch is left as it was.
"""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from amptui.guest.loop import loop_hooks
from amptui.guest.loop.computed_precision import PrecisionReader
from amptui.guest.loop.pass_account import PassAccount
from tests.loops.loop_mismatches import Result, check, first_mismatch
from tests.loops.loop_plans import Example, LoopPlan, ScalerPlan, Shape, Watching
from tests.loops.loop_strategies import drawn, examples
from tests.loops.loop_table import Tally
from tests.loops.loop_truth import Truth
from tests.loops.planned_script import check_script

SHAPES: tuple[Shape, ...] = get_args(Shape)

MANY = {shape: 250 if shape == "plain" else 60 for shape in SHAPES}
"""Over 1,200 in all, the same ones in every run."""


@pytest.fixture(scope="module")
def tally() -> Iterator[Tally]:
    tally = Tally()
    yield tally
    print()
    print(*tally.lines(), sep="\n")


def hold(result: Result) -> None:
    """Fail with the first things that an example showed."""
    if result.mismatches:
        raise AssertionError("\n".join(map(str, result.mismatches[:3])))


def checked(example: Example, **options: bool) -> Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a scheduler before the first applied step, for one
        return check(example, **options)


@pytest.mark.ci
@settings(max_examples=25, derandomize=True)
@given(examples())
def test_a_watched_loop_is_recorded_as_it_was(example: Example) -> None:
    hold(checked(example))


@pytest.mark.ci
@pytest.mark.parametrize("shape", SHAPES)
def test_many_loops_of_each_shape_are_recorded_as_they_were(shape: Shape, tally: Tally) -> None:
    @settings(max_examples=MANY[shape], derandomize=True, database=None, suppress_health_check=[*HealthCheck])
    @given(examples(shape=shape))
    def law(example: Example) -> None:
        result = checked(example)
        tally.results.append(result)
        hold(result)

    law()


@pytest.mark.ci
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_loops_are_recorded_as_they_were(backend: str, tally: Tally) -> None:
    @settings(max_examples=40, derandomize=True, database=None)
    @given(examples(compiled=backend))
    def law(example: Example) -> None:
        torch.compiler.reset()  # else the ninth loop is no longer compiled
        result = checked(example)
        tally.results.append(result)
        hold(result)

    law()


@pytest.mark.ci
@settings(max_examples=100, derandomize=True, database=None)
@given(st.one_of(examples(by="observe"), examples(by="watch")))
def test_journals_hold_what_loops_did(example: Example) -> None:
    hold(checked(example, journals=True))


@pytest.mark.ci
def test_unmodified_scripts_are_recorded_as_they_were(tmp_path_factory: pytest.TempPathFactory) -> None:
    @settings(max_examples=25, derandomize=True, database=None, phases=[Phase.generate])
    @given(examples(by="run --observe"))
    def law(example: Example) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            hold(check_script(example, tmp_path_factory.mktemp("script")))

    law()


def test_a_plan_is_named_by_what_is_unusual_in_it() -> None:
    plan = LoopPlan(shape="GAN", scaler=ScalerPlan("one", init_scale=8.0))
    assert repr(plan) == "LoopPlan(shape='GAN', scaler=ScalerPlan(kind='one', init_scale=8.0))"


def test_the_first_mismatch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    examples = [Example(), Example(LoopPlan(), Watching(by="watch"))]
    assert first_mismatch(examples) is None
    monkeypatch.setattr(Truth, "passes", lambda _self, _optimizer: [])
    mismatch = first_mismatch(examples)
    assert mismatch is not None
    assert (mismatch.what, mismatch.example) == ("loss", Example())


def _plant(defect: str, patch: pytest.MonkeyPatch) -> None:
    """Put one of the old defects back into the engine."""
    if defect == "cleared gradients count":
        patch.setattr(PassAccount, "_find_cleared", lambda _self: None)
    elif defect == "precision is not read":
        patch.setattr(PrecisionReader, "read", lambda _self, _backward: torch.float32)
    else:
        patch.setattr(loop_hooks, "mark_scaled", lambda *_: None)


@pytest.fixture(scope="module")
def sound() -> list[Example]:
    """Loops that are recorded as they were."""
    in_process = [example for example in drawn(60) if example.watching.by != "run --observe"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        examples = [example for example in in_process if first_mismatch([example]) is None]
    assert len(examples) > 30
    return examples


@pytest.mark.ci
@pytest.mark.parametrize(
    ("defect", "what"),
    [
        ("cleared gradients count", {"loss", "loss form", "micro-batches", "gradients dropped", "reason"}),
        ("precision is not read", {"precision"}),
        ("scaled losses are not marked", {"loss", "null loss"}),
    ],
)
def test_old_defects_are_found_again(
    defect: str, what: set[str], sound: list[Example], monkeypatch: pytest.MonkeyPatch
) -> None:
    _plant(defect, monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mismatch = first_mismatch(sound)
    assert mismatch is not None
    assert mismatch.what in what


@pytest.mark.ci
def test_drawn_loops_differ_and_are_the_same_each_time() -> None:
    some = drawn(50)
    assert some == drawn(50)
    assert len(set(some)) > 45
    assert {example.watching.by for example in some} == {"observe", "watch", "run --observe"}


def test_journals_are_read(runs: Path) -> None:
    assert not checked(Example(), journals=True).mismatches
    assert len([*runs.iterdir()]) == 1
