"""The command line: parses it, wires engine, recorder and front together, and says how it ended.

Heavy imports (torch, textual) happen inside functions: the screen must stand before torch is loaded.
"""

import argparse
import gc
import sys
from collections.abc import Sequence
from pathlib import Path

from amptui import __version__
from amptui.errors import AmptuiError, UsageError
from amptui.records import AMP_PRECISIONS, PRECISIONS
from amptui.request import TrainRequest


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, with where to look; argparse prints the whole usage instead."""

    def error(self, message: str) -> None:  # type: ignore[override]
        raise UsageError(message, mend=f"see `{self.prog} --help`")


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


def build_parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    parser = _Parser(prog="amptui", description="Watch and understand mixed-precision training.")
    parser.add_argument("--version", action="version", version=f"amptui {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_train(commands.add_parser("train", help="train a model and watch it"))
    commands.add_parser("models", help="list the models that come with amptui")
    return parser


def _add_train(train: argparse.ArgumentParser) -> None:
    train.description = "Train a model and watch it live; without a terminal, in plain lines."
    train.add_argument(
        "model", metavar="MODEL", help="a name, path/to/file.py[:Class] or package.module:Class"
    )
    add = train.add_argument_group("what is trained").add_argument
    add("--epochs", type=_positive_int, metavar="N", help="epochs to train (default: the model's)")
    add("--steps", type=_positive_int, metavar="N", help="stop after that many steps")
    add("--batch-size", type=_positive_int, metavar="N", help="samples a step (default: the model's)")
    add("--lr", type=_positive_float, metavar="X", help="learning rate (default: the model's)")
    add("--clip-norm", type=_positive_float, metavar="X", help="clip the gradients' norm, after unscaling")
    add("--seed", type=_natural_int, default=0, metavar="N", help="seed of everything random (default: 0)")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="set any field of the experiment")
    add = train.add_argument_group("how it computes").add_argument
    add("--precision", choices=PRECISIONS, help="precision to begin in (default: fp32)")
    add("--amp-dtype", choices=AMP_PRECISIONS, help="what AMP means (default: fp16 on CUDA, else bf16)")
    add("--device", type=_device, default="auto", metavar="DEVICE", help="auto, cpu, cuda or cuda:N")
    add = train.add_argument_group("what it reads and writes").add_argument
    add(
        "--data",
        choices=("auto", "real", "synthetic"),
        default="auto",
        help="default: auto, real if it is to be had",
    )
    add("--data-dir", type=Path, metavar="DIR", help="where data sets are (default: your cache folder)")
    add("--run-dir", type=Path, metavar="DIR", help="folder of this run (default: a new one)")
    add = train.add_argument_group("how it is shown").add_argument
    add("--headless", action="store_true", help="plain lines instead of the screen")
    add("--json", action="store_true", help="every record as one JSON line on standard output")
    add(
        "--fps",
        type=_positive_float,
        metavar="X",
        help="fix the frames a second (default: at most 4, by cost)",
    )


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
        settings=_settings(options.set),
        attended=launch.wants_screen(headless=options.headless or options.json),
    )
    return launch.train(request, run_dir=options.run_dir, json=options.json, frames_per_second=options.fps)


def _models(_options: argparse.Namespace) -> int:
    from amptui.models import CATALOGUE

    width = max(map(len, CATALOGUE))
    for name, (_, lesson) in CATALOGUE.items():
        print(f"{name:{width}}  {lesson}")  # noqa: T201
    return 0


_COMMANDS = {"train": _train, "models": _models}


def _settings(pairs: list[str]) -> dict[str, str]:
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--set {pair}", mend="write --set NAME=VALUE")
        settings[name.strip().replace("-", "_")] = value
    return settings


def _positive_int(text: str) -> int:
    value = _number(text, int, "a whole number above 0")
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(value)


def _natural_int(text: str) -> int:
    value = _number(text, int, "a whole number from 0 up")
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 up")
    return int(value)


def _positive_float(text: str) -> float:
    value = _number(text, float, "a number above 0")
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _number(text: str, kind: type[int] | type[float], wanted: str) -> float:
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}") from None


def _device(text: str) -> str:
    kind, colon, index = text.partition(":")
    if text in ("auto", "cpu", "cuda") or (kind == "cuda" and colon and index.isdecimal()):
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is not auto, cpu, cuda or cuda:N")
