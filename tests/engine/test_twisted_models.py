"""Whatever a model file does within the rules of Python, its run has one end, and one line says a bad one."""

import json
import warnings
from pathlib import Path

import pytest

from amptui.records import codec
from amptui.records.run import RunFailed, RunFinished
from tests.engine.working import Worker
from tests.recipes.twisted import WAYS

pytestmark = pytest.mark.usefixtures("no_trace_of_imports")

MODEL = str(Path(__file__).parents[1] / "recipes" / "twisted.py")


@pytest.mark.ci
@pytest.mark.parametrize("way", WAYS)
def test_a_model_file_with_one_twist_has_one_end(way: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch thinks of such a model
        worker = Worker(MODEL, settings={"way": way}, precision="fp32", steps=12, checkpoint_dir=tmp_path)
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
