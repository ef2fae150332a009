"""What underflows in float16, and what that does: ``python -m tests.benchmarks.underflow``.

Trains each trouble of ``unstable`` and healthy models of varied kind on the CPU, in FP32 and then in float16,
and prints what the histogram said in both, what an X-ray said, and what the answer on AMP was. An underflow
must be an alarm, and nothing else may be one. With ``--scales`` it takes X-rays of trained models at ever
smaller loss scales instead: from which share on a gradient is wrong. Takes some minutes.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain
from typing import get_args

import torch

from amptui import Experiment
from amptui.base.errors import ExperimentError
from amptui.diagnosis.amp_answer import amp_answer
from amptui.loops.description import describe_run
from amptui.loops.setup import Prepared
from amptui.models.unstable import Unstable
from amptui.probes.xray import take_xray
from amptui.records.control import Control, HistogramRequest, PrecisionRequest, Request, XRayRequest
from amptui.records.findings import Float16Window, XRayTaken
from amptui.records.run import Record
from amptui.telemetry.finding import FindingReported
from amptui.telemetry.underflow import UNDERFLOW_SHARE, underflowing_share, xray_share
from tests.benchmarks.healthy_models import HEALTHY, OWN_DATA
from tests.builders import StepRow, view_of
from tests.models.on_images import on_images
from tests.tiny import Log, prepare, train

FP32_STEPS, FP16_STEPS = 40, 60
"""The trouble ``buffers`` comes at step 50, ``forward`` some 20 steps later."""

HEALTHY_FP16_STEPS = 8
"""A processor without float16 arithmetic takes seconds for one of ``mnist-deep``."""

TROUBLES = get_args(Unstable.__annotations__["trouble"])

EXPONENTS = (10, 4, 0, -2, -4, -6, -8, -10, -12, -14)
"""Of the loss scales of ``--scales``: the usual one is 2^16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was measured of one model; None where it could not be."""

    name: str
    flushed: float | None
    """Of the nonzero elements in FP32's histogram, those that float16 would flush."""
    fp32_share: float | None
    """Of the norm, by the histogram of a step in FP32, at the scale that float16 would use."""
    fp16_share: float | None
    """The same in float16, where what was flushed on the way cannot be seen."""
    xray_share: float | None
    error: float | None
    """|float16 - FP32| / |FP32| of the whole gradient of one batch, by the X-ray."""
    cause: str
    """What the answer on AMP is about; empty without trouble."""
    alarms: int
    """Events of underflow."""

    @property
    def underflows(self) -> bool:
        """Whether the answer, or an event, says that gradients underflow."""
        return self.alarms > 0 or self.cause.startswith("float16")


def gradient_error(xray: XRayTaken) -> float | None:
    """The relative error of all layers together; None beside NaN or Inf."""
    layers = [
        (layer.norm, layer.relative_error)
        for layer in xray.layers
        if layer.norm is not None and layer.relative_error is not None
    ]
    whole = sum(norm**2 for norm, _ in layers)
    square = sum((norm * error) ** 2 for norm, error in layers)
    return math.sqrt(square / whole) if whole and math.isfinite(square) else None


def prepared(experiment: Experiment, steps: int) -> Prepared:
    """On digits, unless the experiment has data of its own."""
    if isinstance(experiment, OWN_DATA):
        return prepare(experiment, precision="fp32", steps=steps, amp_precision="fp16")
    return on_images(experiment, steps=steps, precision="fp32", amp_precision="fp16", validation_images=8)


def measure(
    name: str, experiment: Experiment, *, fp32_steps: int = FP32_STEPS, fp16_steps: int = FP16_STEPS
) -> Row:
    """Train in FP32 and then in float16, with a histogram of each and an X-ray."""
    last = fp32_steps + fp16_steps
    asks: dict[int, tuple[Request, ...]] = {
        fp32_steps - 3: (HistogramRequest(),),
        fp32_steps: (PrecisionRequest("fp16"),),
        last - 6: (HistogramRequest(),),
        last - 4: (XRayRequest(),),
    }
    control = Control()

    def watch(record: Record) -> None:
        if isinstance(record, StepRow):
            for request in asks.get(record.step, ()):
                control.ask(request)

    log, model = Log(watch), prepared(experiment, last)
    log.emit(describe_run(name, model))
    with suppress(ExperimentError):  # a trouble may end the run
        train(model, log, control)
    return row_of(name, log)


def row_of(name: str, log: Log) -> Row:
    """What a run's records say."""
    view = view_of(*log)
    windows, xrays = log.of(Float16Window), log.of(XRayTaken)
    before = next((each for each in reversed(windows) if each.precision == "fp32"), None)
    within = next((each for each in reversed(windows) if each.precision == "fp16"), None)
    cause = amp_answer(view).cause
    nonzero = 0 if before is None else before.elements - before.zeros
    return Row(
        name=name,
        flushed=before.flushed / nonzero if before is not None and nonzero else None,
        fp32_share=None if before is None else underflowing_share(before),
        fp16_share=None if within is None else underflowing_share(within),
        xray_share=xray_share(xrays[-1]) if xrays else None,
        error=gradient_error(xrays[-1]) if xrays else None,
        cause="" if cause is None else f"{cause.subject}: {cause.state}",
        alarms=sum(isinstance(event.about, FindingReported) for event in view.events),
    )


def trouble(name: str) -> Row:
    """One trouble of ``unstable``."""
    return measure(f"unstable {name}", Unstable(trouble=name))


def healthy(name: str) -> Row:
    """A model that trains well in float16."""
    return measure(name, HEALTHY[name](), fp16_steps=HEALTHY_FP16_STEPS)


def scales(name: str, experiment: Experiment) -> Iterator[tuple[str, int, float | None, float | None]]:
    """Name, exponent of the scale, share of the norm, and relative error, at ever smaller scales."""
    model = prepared(experiment, FP32_STEPS)
    train(model, Log())
    batches = [next(model.training.epoch(1))]
    for exponent in EXPONENTS:
        xray = take_xray(model, batches, step=1, precision="fp16", loss_scale=2.0**exponent)
        yield name, exponent, xray_share(xray), gradient_error(xray)


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scales", action="store_true", help="X-rays at smaller and smaller loss scales")
    torch.set_num_threads(1)
    if parser.parse_args().scales:
        return print_scales()
    print(f"{'model':22} {'flushed':>8} {'FP32':>8} {'fp16':>8} {'X-ray':>8} {'error':>8}  the answer")
    rows = []
    for row in chain(map(trouble, TROUBLES), map(healthy, HEALTHY)):
        rows.append(row)
        numbers = (row.flushed, row.fp32_share, row.fp16_share, row.xray_share, row.error)
        shown = " ".join(f"{'n/a' if number is None else f'{number:.1e}':>8}" for number in numbers)
        print(f"{row.name:22} {shown}  {row.cause or 'no trouble'}", flush=True)
    print(json.dumps([asdict(row) for row in rows]))
    return int(any(row.underflows != (row.name == "unstable underflow") for row in rows))


def print_scales() -> int:
    """A line for each model and scale; then the largest error on either side of the threshold."""
    names = ("mlp", "residual", "depthwise", "transformer", "char-gpt", "lstm", "autoencoder")
    models: dict[str, Callable[[], Experiment]] = {name: HEALTHY[name] for name in names}
    models["unstable none"] = lambda: Unstable(trouble="none")
    below, above = [0.0], [0.0]
    for name, make in models.items():
        for _, exponent, share, error in scales(name, make()):
            if share is not None and error is not None:
                print(f"{name:14} 2^{exponent:<4} share {share:.1e}  error {error:.1e}", flush=True)
                (above if share >= UNDERFLOW_SHARE else below).append(error)
    print(f"largest error below {UNDERFLOW_SHARE}: {max(below):.2g}, from it on: {max(above):.2g}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
