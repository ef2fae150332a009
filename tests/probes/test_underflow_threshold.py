"""The threshold of underflow: no trouble is missed, no healthy model is flagged, and the margins are wide."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, get_args

import pytest
from torch import nn

from amptui import Experiment
from amptui.base.errors import ExperimentError
from amptui.diagnosis.amp_answer import amp_answer
from amptui.loops.description import describe_run
from amptui.models.char_gpt import CharGpt
from amptui.models.mnist_deep import MnistDeep
from amptui.models.multi_task import MultiTask
from amptui.models.selective import Selective
from amptui.models.simple_cnn import SimpleCnn
from amptui.models.unstable import Unstable
from amptui.records.answers import RequestMade
from amptui.records.control import Control
from amptui.records.findings import Float16Window, XRayTaken
from amptui.telemetry.finding import FindingReported
from amptui.telemetry.health import UNDERFLOW_SHARE, xray_share
from tests.builders import view_of
from tests.models.on_images import on_images
from tests.tiny import Asks, Log, prepare, switching, train


class Small(Experiment):
    batch_size: int = 32
    learning_rate: float = 1e-3

    def build_model(self) -> nn.Module:
        layers = (nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
        return nn.Sequential(nn.Flatten(), *layers)


HEALTHY: Mapping[str, Callable[[], Experiment]] = {
    "mnist-deep": lambda: MnistDeep(batch_size=8),
    "simple-cnn": lambda: SimpleCnn(batch_size=16),
    "multi-task": lambda: MultiTask(batch_size=16),
    "selective": lambda: Selective(batch_size=16),
    "char-gpt": lambda: CharGpt(
        batch_size=8, layers=2, heads=2, width=64, context=32, learning_rate=1e-3, warmup_steps=5
    ),
    "mlp": Small,
}
"""Experiments of varied kind that train well in float16, by name; each made anew."""

OWN_DATA = (CharGpt, SimpleCnn)
"""Those that do not learn from digits."""


FP32_STEPS, FP16_STEPS = 40, 60
"""The trouble ``buffers`` comes at step 50, ``forward`` some 20 steps later."""

HEALTHY_FP16_STEPS = 8
"""A processor without float16 arithmetic takes seconds for one of ``mnist-deep``."""


def measure(experiment: Experiment, *, fp16_steps: int = FP16_STEPS) -> tuple[list[float], str, bool]:
    """Train in FP32 and then in float16, with a histogram of each and an X-ray.

    The shares of the norm, where they could be measured: by the histogram of a step in FP32 at the scale that
    float16 would use, by that of a step in float16, where what was flushed on the way cannot be seen, by the
    X-ray. What the answer on AMP is about. Whether it, or an event, says that gradients underflow.
    """
    last = FP32_STEPS + fp16_steps
    asks: Asks = {
        FP32_STEPS - 3: RequestMade("histogram"),
        FP32_STEPS: RequestMade("precision", precision="fp16"),
        last - 6: RequestMade("histogram"),
        last - 4: RequestMade("x-ray"),
    }
    control = Control()
    asked: dict[str, Any] = {"steps": last, "precision": "fp32", "amp_precision": "fp16"}
    if isinstance(experiment, OWN_DATA):
        prepared = prepare(experiment, **asked)
    else:
        prepared = on_images(experiment, validation_images=8, **asked)
    log = Log(switching(control, asks))
    log.emit(describe_run("underflow", prepared))
    with suppress(ExperimentError):  # a trouble may end the run
        train(prepared, log, control)
    view = view_of(*log)
    windows = {window.precision: window for window in log.of(Float16Window)}  # the last of each
    shares = [windows[name].underflowing_share for name in ("fp32", "fp16") if name in windows]
    shares += [xray_share(xray) for xray in log.of(XRayTaken)[-1:]]
    cause = amp_answer(view).cause
    is_alarmed = any(isinstance(event.about, FindingReported) for event in view.events)
    underflows = is_alarmed or (cause is not None and cause.subject == "float16")
    about = "" if cause is None else f"{cause.subject}: {cause.state}"
    return [share for share in shares if share is not None], about, underflows


CI, NIGHTLY = pytest.mark.ci, pytest.mark.nightly

MAX_HEALTHY_SHARE = UNDERFLOW_SHARE / 100
MIN_TROUBLED_SHARE = 3 * UNDERFLOW_SHARE

CAUSES = {
    "none": "",
    "calibration": "",
    "collapse": "overflow: collapsed",
    "forward": "overflow: overflowed",
    "buffers": "weights: buffers lost",
    "underflow": "float16: underflows",
}
"""What the answer on AMP is about in each trouble of ``unstable``; empty without trouble."""


@pytest.mark.ci
@pytest.mark.parametrize("name", get_args(Unstable.__annotations__["trouble"]))
def test_of_all_troubles_only_underflow_is_one(name: Any) -> None:
    shares, cause, underflows = measure(Unstable(trouble=name))
    assert (cause, underflows) == (CAUSES[name], name == "underflow")
    if underflows:
        assert min(shares) > MIN_TROUBLED_SHARE
    else:
        assert max(shares) < MAX_HEALTHY_SHARE


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=CI if name == "mlp" else NIGHTLY) for name in HEALTHY]
)
def test_no_healthy_model_is_flagged(name: str) -> None:
    shares, _, underflows = measure(HEALTHY[name](), fp16_steps=HEALTHY_FP16_STEPS)
    assert not underflows
    assert len(shares) == 3
    assert max(shares) < MAX_HEALTHY_SHARE
