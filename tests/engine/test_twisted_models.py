"""Whatever a model file does within the rules of Python, its run has one end, and one line says a bad one."""

import json
import warnings
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from amptui.records import codec
from amptui.records.run import RunFailed, RunFinished
from tests.engine.working import Worker
from tests.recipes.twisted import WAYS

pytestmark = pytest.mark.usefixtures("no_trace_of_imports")

MODEL = str(Path(__file__).parents[1] / "recipes" / "twisted.py")

TIERS: tuple[list[pytest.MarkDecorator], ...] = ([], [pytest.mark.nightly], [pytest.mark.ci])

ONE_TWIST = [
    pytest.param({part: way}, marks=TIERS[number % 3])
    for part, ways in WAYS.items()
    for number, way in enumerate(ways)
]

TWISTS = st.fixed_dictionaries({}, optional={part: st.sampled_from(ways) for part, ways in WAYS.items()})
"""Several parts at once, the others as they should be."""


def assert_one_end(twist: dict[str, str], precision: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch thinks of such a model
        worker = Worker(MODEL, settings=twist, precision=precision, steps=12, checkpoint_dir=tmp_path)
        last = worker.end()
    assert isinstance(last, RunFinished | RunFailed)
    if isinstance(last, RunFailed):
        assert last.error
        assert len(last.error) < 1000
        assert len(last.error.splitlines()) == 1
        assert str(worker.thread.error) == last.error
    for record in worker.log:
        line = codec.dumps(record)
        assert codec.loads(line) is not None
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.mark.parametrize("twist", ONE_TWIST, ids=str)
def test_a_model_file_with_one_twist_has_one_end(twist: dict[str, str], tmp_path: Path) -> None:
    assert_one_end(twist, "fp32", tmp_path)


@pytest.mark.nightly
@settings(max_examples=40)
@given(twist=TWISTS, precision=st.sampled_from(["fp32", "ieee", "bf16", "fp16"]))
@example(twist={"model": "lazy", "data": "only None"}, precision="fp16")
def test_a_model_file_with_several_twists_has_one_end(
    twist: dict[str, str], precision: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert_one_end(twist, precision, tmp_path_factory.mktemp("run"))
