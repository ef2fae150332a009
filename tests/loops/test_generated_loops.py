"""Generated training loops, each watched in one of the three ways: what is recorded is true, or absent.

The law: loss, precision, loss scale, skips, learning rates and the number of steps of each optimizer are
recorded as they were, or as unknown with a reason; the training keeps its bits; torch is left as it was.
"""

import warnings
from collections.abc import Iterator
from typing import get_args

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.loops.loop_mismatches import check
from tests.loops.loop_plans import Example, Shape, examples


@pytest.fixture(autouse=True)
def _own_warnings() -> Iterator[None]:
    """Of a scheduler before the first applied step, for one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def law(count: int, loops: st.SearchStrategy[Example], *, number: int = 0) -> None:
    """Hold so many loops to the truth, the same ones in every run; others with another ``number``."""

    @seed(number)
    @settings(max_examples=count, database=None, suppress_health_check=[*HealthCheck])
    @given(loops)
    def recorded_as_they_were(example: Example) -> None:
        if example.plan.compiled != "none":
            torch.compiler.reset()  # else the ninth loop is no longer compiled
        assert not (found := check(example)), "\n".join(found[:3])

    recorded_as_they_were()


@pytest.mark.torch
@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("by", ["observe", "watch", "run --observe"])
def test_loops_are_recorded_as_they_were(by: str, number: int) -> None:
    law(5, examples(by=by), number=number)  # of which the first is the plainest


@pytest.mark.parametrize(
    ("plain", "others"),
    [pytest.param(40, 10, marks=pytest.mark.ci), pytest.param(250, 60, marks=pytest.mark.nightly)],
)
@pytest.mark.parametrize("shape", get_args(Shape))
def test_loops_of_each_shape_are_recorded_as_they_were(shape: Shape, plain: int, others: int) -> None:
    law(plain if shape == "plain" else others, examples(shape=shape))


@pytest.mark.parametrize(
    ("backend", "count"),
    [
        pytest.param("eager", 8, marks=[pytest.mark.ci, pytest.mark.torch]),
        *[pytest.param(backend, 40, marks=pytest.mark.nightly) for backend in ("eager", "aot_eager")],
    ],
)
def test_compiled_loops_are_recorded_as_they_were(backend: str, count: int) -> None:
    law(count, examples(compiled=backend))
