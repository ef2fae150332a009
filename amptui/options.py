"""What can be written on the command line: commands, options and their values."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from amptui import __version__
from amptui.errors import UsageError
from amptui.prompt import put
from amptui.records import AMP_PRECISIONS, PRECISIONS

MOST_ROUNDS = 24
"""Rounds that a comparison in turns takes at most."""

_Add = Callable[..., Any]


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, with where to look; argparse prints the whole usage instead."""

    def _print_message(self, message: str, _file: Any = None) -> None:
        put(message)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, mend=f"see `{self.prog} --help`")


def build_parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    parser = _Parser(prog="amptui", description="Watch and understand mixed-precision training.")
    parser.add_argument("--version", action="version", version=f"amptui {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_train(commands.add_parser("train", help="train a model and watch it"))
    _add_attach(commands.add_parser("attach", help="watch a run that is under way, from any terminal"))
    _add_runs(commands.add_parser("runs", help="list the runs that are kept, and whether they live"))
    _add_bench(commands.add_parser("bench", help="measure which precision pays for a model here"))
    _add_replay(commands.add_parser("replay", help="watch a recorded run again"))
    _add_export(commands.add_parser("export", help="write a recorded run in another format"))
    _add_doctor(commands.add_parser("doctor", help="say what this machine can do"))
    commands.add_parser("models", help="list the models that come with amptui")
    return parser


def settings(pairs: list[str]) -> dict[str, str]:
    """``NAME=VALUE`` pairs by their names; raises UsageError."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--set {pair}", mend="write --set NAME=VALUE")
        found[name.strip().replace("-", "_")] = value
    return found


# ---------------------------------------------------------------------------------- commands


def _add_train(train: argparse.ArgumentParser) -> None:
    train.description = "Train a model and watch it live; without a terminal, in plain lines."
    train.epilog = (
        "SIGTERM, and what batch systems send before they kill (SIGUSR1, SIGUSR2, SIGXCPU, SIGALRM), "
        "finish the step, write a checkpoint and end the run; the exit status is 128 + the signal's number. "
        "In a Slurm script: #SBATCH --signal=USR1@60, and --resume in the command goes on after a requeue."
    )
    _add_model(train, needed=False)
    add = train.add_argument_group("what is trained").add_argument
    add("--epochs", type=_positive_int, metavar="N", help="epochs to train (default: the model's)")
    add("--steps", type=_positive_int, metavar="N", help="stop after that many steps")
    add("--batch-size", type=_positive_int, metavar="N", help="samples a step (default: the model's)")
    _add_recipe(add)
    add = train.add_argument_group("how it computes").add_argument
    add("--precision", choices=PRECISIONS, help="precision to begin in (default: fp32)")
    add("--amp-dtype", choices=AMP_PRECISIONS, help="what AMP means (default: fp16 on CUDA, else bf16)")
    _add_device(add)
    add = train.add_argument_group("what it reads and writes").add_argument
    _add_data(add)
    add("--run-dir", type=Path, metavar="DIR", help="folder of this run (default: a new one)")
    add(
        "--resume",
        nargs="?",
        const="",
        metavar="RUN",
        help="go on with a run from its last checkpoint (default: the newest; others' runs need MODEL)",
    )
    add(
        "--checkpoint-every",
        type=_positive_int,
        metavar="N",
        help="a checkpoint every N steps too (default: at each epoch's end)",
    )
    add = train.add_argument_group("how it is shown").add_argument
    add("--detach", action="store_true", help="train in the background; `amptui attach` shows it")
    add("--headless", action="store_true", help="plain lines instead of the screen")
    add("--json", action="store_true", help="every record as one JSON line on standard output")
    _add_fps(add)


def _add_attach(attach: argparse.ArgumentParser) -> None:
    attach.description = "Show a run that is under way; leaving it again does nothing to the training."
    _add_run(attach, default="the newest that is under way")
    _add_fps(attach.add_argument)


def _add_runs(runs: argparse.ArgumentParser) -> None:
    runs.description = "List the kept runs, the newest first: what they are, how far, and whether they live."
    runs.add_argument("--json", action="store_true", help="every run as one JSON line on standard output")


def _add_bench(bench: argparse.ArgumentParser) -> None:
    bench.description = "Train in every precision in turns, and say what each is worth on this machine."
    _add_model(bench)
    add = bench.add_argument_group("what is measured").add_argument
    add(
        "--precisions",
        type=_precisions,
        metavar="A,B,...",
        help="which, the first being the baseline (default: all that pay to be looked at here)",
    )
    add(
        "--batch-size",
        type=_positive_ints,
        default=(None,),
        metavar="N[,N...]",
        help="samples a step; several are measured one by one (default: the model's)",
    )
    add(
        "--rounds",
        type=_rounds,
        metavar="N",
        help=f"stop after that many rounds (default: when sure to 1%%, at most {MOST_ROUNDS})",
    )
    _add_recipe(add)
    add = bench.add_argument_group("how it computes").add_argument
    add("--channels-last", action="store_true", help="keep convolutions' weights channels last")
    add("--compile", action="store_true", help="run the model through torch.compile")
    _add_device(add)
    add = bench.add_argument_group("what it reads and writes").add_argument
    _add_data(add)
    add("--run-dir", type=Path, metavar="DIR", help="keep the runs there (default: none is kept)")
    add("--json", action="store_true", help="one JSON object on standard output instead of the tables")


def _add_replay(replay: argparse.ArgumentParser) -> None:
    replay.description = "Play a recorded run into the screen that it was watched on."
    _add_run(replay)
    replay.add_argument(
        "--speed", type=_positive_float, default=1.0, metavar="X", help="times its own pace (default: 1)"
    )


def _add_export(export: argparse.ArgumentParser) -> None:
    export.description = "Write a recorded run in other programs' formats, one or several at once."
    _add_run(export)
    export.add_argument("--csv", type=Path, metavar="FILE", help="a table, one row a step")
    export.add_argument("--tensorboard", type=Path, metavar="DIR", help="event files, in a folder of runs")
    export.add_argument("--html", type=Path, metavar="FILE", help="a page to hand on, complete in itself")


def _add_doctor(doctor: argparse.ArgumentParser) -> None:
    doctor.description = "Say what this machine can do, what is amiss, and how to mend it."
    doctor.add_argument("--json", action="store_true", help="every check as one JSON line on standard output")


# --------------------------------------------------------------- options of several commands


def _add_model(parser: argparse.ArgumentParser, *, needed: bool = True) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs=None if needed else "?",
        help="a name, path/to/file.py[:Class] or package.module:Class",
    )


def _add_run(parser: argparse.ArgumentParser, *, default: str = "the newest") -> None:
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        default="",
        help=f"a folder, a journal or a name (default: {default})",
    )


def _add_fps(add: _Add) -> None:
    add(
        "--fps",
        type=_positive_float,
        metavar="X",
        help="fix the frames a second (default: at most 4, by cost)",
    )


def _add_recipe(add: _Add) -> None:
    add("--lr", type=_positive_float, metavar="X", help="learning rate (default: the model's)")
    add("--clip-norm", type=_positive_float, metavar="X", help="clip the gradients' norm, after unscaling")
    add("--seed", type=_natural_int, metavar="N", help="seed of everything random (default: 0)")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="set any field of the experiment")


def _add_device(add: _Add) -> None:
    add("--device", type=_device, metavar="DEVICE", help="auto, cpu, cuda or cuda:N (default: auto)")


def _add_data(add: _Add) -> None:
    add(
        "--data",
        choices=("auto", "real", "synthetic"),
        help="default: auto, real if it is to be had",
    )
    add("--data-dir", type=Path, metavar="DIR", help="where data sets are (default: your cache folder)")


# ------------------------------------------------------------------------------------ values


def _positive_int(text: str) -> int:
    value = _number(text, int, "a whole number above 0")
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(value)


def _positive_ints(text: str) -> tuple[int, ...]:
    """Each once, in the order in which they were first named."""
    return tuple(dict.fromkeys(_positive_int(part.strip()) for part in text.split(",")))


def _rounds(text: str) -> int:
    value = _positive_int(text)
    if value > MOST_ROUNDS:
        raise argparse.ArgumentTypeError(f"{text!r} is more than {MOST_ROUNDS}")
    return value


def _precisions(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in PRECISIONS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(PRECISIONS)}")
    return names


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
