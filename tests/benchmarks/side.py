"""One training for a comparison of step times, which goes on until it is killed.

    python -m tests.benchmarks.side SIDE MODEL RUN_DIR [--precision P] [--device D] [--batch-size N]
                                    [--mnist DIR]

SIDE says how much of amptui runs: ``tutorial`` (none of it: mnist-deep as a tutorial writes it, on MNIST's
files below DIR), ``plain`` (none of it but its data: a bare loop), ``trainer`` (the trainer's thread, whose
records are dropped), ``no-probes`` (that without its looks into gradients and modules) or ``recorder``
(journal, session, samplers and socket too, nobody attached). The whole app is started as a person starts it.
"""

import argparse
import os
from pathlib import Path

from amptui.loops import setup
from amptui.loops.worker import TrainingThread
from amptui.process.plan import plan_new
from amptui.process.training import Training
from amptui.recipe.request import TrainRequest, parse_model
from amptui.records.control import Control
from tests.benchmarks import plain_loop, stamps, tutorial_loop

SIDES = ("tutorial", "plain", "trainer", "no-probes", "recorder")

_ENDLESS_EPOCHS = 1_000_000


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description="Train until killed.")
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("model")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--mnist", type=Path)
    options = parser.parse_args()
    if options.side == "tutorial":
        writer = stamps.StampWriter(Path(os.environ[stamps.VARIABLE]))
        tutorial_loop.train(
            options.mnist,
            writer,
            precision=options.precision,
            device=setup.choose_device(options.device),
            batch_size=options.batch_size,
        )
        return
    if options.side == "plain":
        settings = {"batch_size": str(options.batch_size)}
        plain_loop.train(options.model, settings, precision=options.precision, device=options.device)
        return
    request = TrainRequest(
        model=options.model,
        precision=options.precision,
        device=options.device,
        batch_size=options.batch_size,
        epochs=_ENDLESS_EPOCHS,
        data="synthetic",
        probes=options.side != "no-probes",
    )
    if options.side == "recorder":
        record(request, options.run_dir)
    else:
        train_alone(request)


def train_alone(request: TrainRequest) -> None:
    """The trainer's thread and nothing beside it."""
    thread = TrainingThread(request, parse_model(request.model), Control(), lambda _record: None)
    thread.start()
    thread.ended.wait()
    if thread.error is not None:
        raise thread.error


def record(request: TrainRequest, run_dir: Path) -> None:
    """All of a run's process, with nobody attached."""
    with Training(plan_new(request, run_dir)) as training:
        training.start()
        training.thread.ended.wait()
        training.close()
    if training.thread.error is not None:
        raise training.thread.error


if __name__ == "__main__":
    main()
