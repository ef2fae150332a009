"""The command line's commands: each wires the parts that do it, and says how it ended.

Heavy imports (torch, textual) happen inside functions: the screen must stand before torch is loaded.
"""

import argparse
import gc
import sys
from collections.abc import Sequence

from amptui.errors import AmptuiError, UsageError
from amptui.options import build_parser, settings
from amptui.request import BenchRequest, TrainRequest


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status.

    0 done or stopped by the user, 1 failed, 2 a usage error, 130 Ctrl+C, 128 + the number of the signal
    that ended it.
    """
    try:
        options = build_parser().parse_args(arguments)
        return _COMMANDS[options.command](options)
    except AmptuiError as error:
        print(f"amptui: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_status
    except KeyboardInterrupt:
        return 130


def _train(options: argparse.Namespace) -> int:
    # What is imported on the way to the first frame stays: looking for garbage in it takes a seventh of the
    # time until that frame. Starting the training turns the collector on again.
    gc.disable()
    try:
        return _launch(options)
    finally:
        gc.enable()


def _launch(options: argparse.Namespace) -> int:
    from amptui import launch

    request = TrainRequest(
        model=options.model,
        precision=options.precision,
        amp_precision=options.amp_dtype,
        device=options.device,
        epochs=options.epochs,
        steps=options.steps,
        batch_size=options.batch_size,
        learning_rate=options.lr,
        clip_norm=options.clip_norm,
        seed=options.seed,
        data_dir=options.data_dir or launch.default_data_dir(),
        data=options.data,
        settings=settings(options.set),
        attended=launch.wants_screen(headless=options.headless or options.json),
    )
    return launch.train(request, run_dir=options.run_dir, json=options.json, frames_per_second=options.fps)


def _bench(options: argparse.Namespace) -> int:
    from amptui.bench import bench
    from amptui.launch import default_data_dir

    training = TrainRequest(
        model=options.model,
        device=options.device,
        learning_rate=options.lr,
        clip_norm=options.clip_norm,
        seed=options.seed,
        data_dir=options.data_dir or default_data_dir(),
        data=options.data,
        settings=settings(options.set),
        channels_last=options.channels_last,
        compiled=options.compile,
    )
    request = BenchRequest(
        training=training,
        precisions=options.precisions,
        batch_sizes=options.batch_size,
        rounds=options.rounds,
        run_dir=options.run_dir,
    )
    return bench(request, json=options.json)


def _replay(options: argparse.Namespace) -> int:
    from amptui.replay import replay
    from amptui.runs.find import find_run

    return replay(find_run(options.run), speed=options.speed)


def _export(options: argparse.Namespace) -> int:
    from amptui.export import export
    from amptui.runs.find import find_run

    places = {"csv": options.csv, "tensorboard": options.tensorboard, "html": options.html}
    if not any(places.values()):
        raise UsageError("no format to export to", mend="give --csv FILE, --tensorboard DIR or --html FILE")
    journal = find_run(options.run)
    found = export(journal, **places)
    written = ", ".join(str(place) for place in places.values() if place is not None)
    print(f"{journal}: {found.steps:,} steps to {written}")  # noqa: T201
    if found.passed_over:
        print(f"amptui: {found.passed_over}", file=sys.stderr)  # noqa: T201
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from amptui.doctor import doctor

    return doctor(json=options.json)


def _models(_options: argparse.Namespace) -> int:
    from amptui.models import CATALOGUE

    width = max(map(len, CATALOGUE))
    for name, (_, lesson) in CATALOGUE.items():
        print(f"{name:{width}}  {lesson}")  # noqa: T201
    return 0


_COMMANDS = {
    "train": _train,
    "bench": _bench,
    "replay": _replay,
    "export": _export,
    "doctor": _doctor,
    "models": _models,
}
