"""A training in its thread, and model files for it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from amptui.loops.worker import TrainingThread
from amptui.recipe.request import ModelSpec, TrainRequest, parse_model
from amptui.records.control import Control
from amptui.records.run import Record, RunFailed, RunFinished
from tests.terminal import KNOBS
from tests.tiny import Log

ENOUGH_SECONDS = 60.0


class Worker:
    def __init__(
        self,
        model: str | ModelSpec = KNOBS,
        *,
        watch: Callable[[Record], object] | None = None,
        control: Control | None = None,
        hooks: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        spec = parse_model(model) if isinstance(model, str) else model
        settings = {"step_ms": "0"} if spec.name == "knobs" else {}
        settings |= options.pop("settings", {})
        request = TrainRequest(
            model=spec.text, **{"device": "cpu", "interactive": False, **options}, settings=settings
        )
        self.control = control or Control()
        self.log = Log(watch)
        self.thread = TrainingThread(request, spec, self.control, self.log.emit, **(hooks or {}))
        self.thread.start()

    def end(self) -> Record:
        assert self.thread.ended.wait(ENOUGH_SECONDS)
        assert self.thread.join(ENOUGH_SECONDS)
        endings = [r for r in self.log if isinstance(r, RunFinished | RunFailed)]
        assert endings == [self.log[-1]]
        return endings[0]


HOOKED = """
import torch
from torch import nn
from amptui import Data, Experiment
from amptui.data.sources import Arrays

class Hooked(Experiment):
    batch_size: int = 16

    def load_data(self, request):
        for detail, done, total in {reports}:
            request.report(detail, done, total)
        {during}
        inputs = torch.rand(64, 4)
        return Data("hooked", False, Arrays(inputs, inputs.argmax(1)))

    def build_model(self):
        return nn.Linear(4, 4)
"""


def hooked(tmp_path: Path, *, during: str = "pass", reports: str = "()") -> str:
    path = tmp_path / "hooked.py"
    path.write_text(HOOKED.format(during=during, reports=reports))
    return str(path)
