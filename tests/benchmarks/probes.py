"""What looking inside mixed precision costs: ``python -m tests.benchmarks.probes``.

Gradient health, float16 window, buffers, traced modules and the X-ray, each as percent of a step of the same
run. Passes with and without hooks alternate, so that a machine's mood falls on both.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import torch

from amptui import DataRequest
from amptui.device.accelerator import enter_device
from amptui.loops import setup
from amptui.loops.description import device_name
from amptui.loops.prepared import Prepared
from amptui.loops.train import Trainer
from amptui.probes.buffers import BufferWatch
from amptui.probes.float16_window import Float16WindowProbe
from amptui.probes.gradients import GradientProbe
from amptui.probes.module_trace import ModuleTrace
from amptui.recipe.loading import build_experiment, load_class
from amptui.recipe.request import TrainRequest, parse_model
from amptui.records.control import Control, XRayRequest
from amptui.records.findings import Float16Window, XRayTaken
from amptui.records.run import Record
from tests.builders import StepRow, of, one_by_one

XRAYS = 3


def main() -> None:
    """Measure, and print a table and then one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="mnist-deep")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pairs", type=int, default=8)
    options = parser.parse_args()
    request = TrainRequest(
        model=options.model,
        precision=options.precision,
        batch_size=options.batch_size,
        steps=options.steps,
        data="synthetic",
        data_dir=Path("unused"),
    )
    prepared = prepare(request)
    records = run(prepared)
    steps = [r.step_seconds for r in of(StepRow, records) if r.step_seconds and not r.settling]
    step_seconds = median(steps)
    rows = {**in_the_run(records, step_seconds), **alone(prepared, options.pairs)}
    print(f"{options.model} {options.precision} on {device_name(prepared.device)}, ", end="")
    print(f"batch {prepared.experiment.batch_size}: a step takes {step_seconds * 1000:.2f} ms")
    for name, seconds in rows.items():
        print(f"{name:34} {seconds * 1000:9.3f} ms {100 * seconds / step_seconds:8.2f}% of a step")
    window_share = share_of_windows(records)
    print(f"{'float16 windows, of the whole run':34} {'':12} {100 * window_share:8.2f}%")
    found = {name: seconds / step_seconds for name, seconds in rows.items()}
    print(json.dumps({"step_seconds": step_seconds, "of_a_step": found, "windows_of_the_run": window_share}))


def prepare(request: TrainRequest) -> Prepared:
    """As the trainer's thread does it."""
    choices = setup.choose(request)
    enter_device(choices.device)
    chosen = load_class(parse_model(request.model))
    experiment = build_experiment(chosen, setup.experiment_settings(chosen, request, choices.device))
    asked = DataRequest(data_dir=request.data_dir, kind=request.data)
    return setup.assemble(request, experiment, choices, data_request=asked)


def run(prepared: Prepared) -> list[Record]:
    """A real training with some X-rays in its second half."""
    control, records = Control(), list[Record]()
    last = prepared.schedule.steps or 0

    def emit(record: Record) -> None:
        for single in one_by_one([record]):
            records.append(single)
            if isinstance(single, StepRow) and last // 2 < single.step <= last // 2 + XRAYS:
                control.ask(XRayRequest())

    Trainer(prepared, control, emit, interactive=False).run()
    return records


def in_the_run(records: list[Record], step_seconds: float) -> dict[str, float]:
    """What the records themselves say of their cost, in seconds."""
    windows = [r.seconds for r in records if isinstance(r, Float16Window) and r.seconds is not None]
    xrays = [r.seconds for r in records if isinstance(r, XRayTaken)]
    assert windows, "no float16 window was measured"
    assert xrays, f"no X-ray was taken in {step_seconds * len(records):.0f} s"
    return {"float16 window, once": median(windows), "X-ray, once": median(xrays)}


def share_of_windows(records: list[Record]) -> float:
    """The part of the run's time after the first window, which no budget pays for, that the others took."""
    windows = [r for r in records if isinstance(r, Float16Window) and r.seconds is not None]
    first = windows[0].step
    run_seconds = sum(r.step_seconds or 0 for r in of(StepRow, records) if r.step > first)
    return sum(window.seconds or 0 for window in windows[1:]) / run_seconds


def alone(prepared: Prepared, pairs: int) -> dict[str, float]:
    """Seconds of each probe by itself on the gradients of a real step; hooks by passes with and without."""
    batches = _endless(prepared)
    gradients, buffers = GradientProbe(prepared.model), BufferWatch(prepared.model, ())
    window = Float16WindowProbe(gradients)
    plain, traced = list[float](), list[float]()

    def step_once() -> None:
        prepared.optimizer.zero_grad(set_to_none=True)
        precision = prepared.precisions[prepared.precision]
        with precision.forward_context:
            loss = prepared.experiment.loss(prepared.model, next(batches))
        assert isinstance(loss, torch.Tensor)
        precision.backward(loss)

    def traced_step() -> None:
        with ModuleTrace(prepared.model) as trace:
            step_once()
        trace.values()

    step_once()
    for _ in range(pairs):
        plain.append(seconds_of(step_once, prepared.device))
        traced.append(seconds_of(traced_step, prepared.device))
    of: dict[str, Callable[[], object]] = {"gradient health": gradients.measure, "buffers": buffers.measure}
    found = {
        name: median(seconds_of(probe, prepared.device) for _ in range(20)) for name, probe in of.items()
    }
    found["float16 window, alone"] = median(
        seconds_of(lambda: window.measure(65536.0), prepared.device) for _ in range(5)
    )
    return found | {"hooks on every module, one step": median(traced) - median(plain)}


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """How long ``call`` takes, the device's work included."""
    _wait(device)
    began = time.perf_counter()
    call()
    _wait(device)
    return time.perf_counter() - began


def _endless(prepared: Prepared) -> Iterator[Any]:
    for epoch in count(1):
        yield from prepared.training.epoch(epoch)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
