"""Does mnist-deep learn as well in bf16 as in FP32? Real MNIST, 60 steps of 64 images, on the CPU.

    python -m tests.benchmarks.learning --data-dir DIR

Takes minutes. Prints the loss at some steps in both precisions as a table, then as one JSON object.
Fails if either did not fall below 0.5.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from amptui import Data, DataRequest
from amptui.models.mnist_deep import MnistDeep
from amptui.records.steps import StepRecord
from tests.tiny import Log, prepare, train

PRECISIONS = ("fp32", "bf16")
SHOWN_STEPS = (1, 20, 40, 60)
LEARNED_LOSS = 0.5
"""Guessing is 2.3; what is below this has learned to tell most digits apart."""


def losses(data_dir: Path, precision: str) -> list[float]:
    """The loss of each of 60 steps from the same seed, hence from the same weights and batches."""

    class RealMnist(MnistDeep):  # type: ignore[misc]
        def load_data(self, request: DataRequest) -> Data:
            data = super().load_data(DataRequest(data_dir=data_dir, kind="real", seed=request.seed))
            return Data(data.name, data.real, data.train)  # no validation: 60 steps are no epoch

    log = Log()
    train(prepare(RealMnist(batch_size=64), precision=precision, steps=SHOWN_STEPS[-1]), log)
    return [record.loss for record in log.of(StepRecord) if record.loss is not None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description="Losses of mnist-deep in FP32 and bf16.")
    parser.add_argument("--data-dir", type=Path, required=True, help="where MNIST is")
    data_dir = parser.parse_args(arguments).data_dir
    found = {precision: losses(data_dir, precision) for precision in PRECISIONS}
    print("step  " + "  ".join(f"{precision:>8}" for precision in PRECISIONS))
    for step in SHOWN_STEPS:
        print(f"{step:4}  " + "  ".join(f"{found[precision][step - 1]:8.4f}" for precision in PRECISIONS))
    shown = {p: {str(step): found[p][step - 1] for step in SHOWN_STEPS} for p in PRECISIONS}
    print(json.dumps({"steps": SHOWN_STEPS[-1], "batch_size": 64, "losses": shown}))
    return int(any(values[-1] >= LEARNED_LOSS for values in found.values()))


if __name__ == "__main__":
    raise SystemExit(main())
