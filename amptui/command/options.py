"""The command line: its commands, options and their values."""

import argparse
import sys
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, NoReturn

from amptui import __version__
from amptui.base.errors import UsageError
from amptui.base.prompt import put
from amptui.command.option_values import (
    MAX_ROUNDS,
    absolute_path,
    count_or_none,
    device,
    finite_float,
    frames_per_second,
    path,
    positive_float,
    positive_int,
    positive_ints,
    precisions,
    restarts,
    rounds,
    seconds_or_never,
    seed,
    workers,
)
from amptui.command.script_source import is_script
from amptui.recipe.request import ADVISE_LOSS_STEPS, ADVISE_MINUTES, COMPILE_MODES, FRAMEWORKS, PAGE_RUNS
from amptui.records.run import AMP_PRECISIONS, PRECISIONS

_PRECISION_HELP = "precision to start in; ieee is FP32 without TF32 (default: fp32)"

_COMPILE_CHOICES = (*COMPILE_MODES, "off")

_Add = Callable[..., Any]


class _Parser(argparse.ArgumentParser):
    """Reports an error in one line, with a hint; argparse would print the whole usage."""

    def _print_message(self, message: str, _file: Any = None) -> None:
        put(message)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"see `{self.prog} --help`")

    splits_script = False
    """Whether what follows a script is the script's own."""

    # argparse's own overloads differ in the type of the namespace only.
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if args is not None and self.splits_script:
            args, own = self._split(args)
            options, unknown = super().parse_known_args(_with_compile_mode(args), namespace)
            options.arguments = [*options.arguments, *own]
            return options, unknown
        if args is not None and "--compile" in self._option_string_actions:
            args = _with_compile_mode(args)
        return super().parse_known_args(args, namespace)

    def _split(self, words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
        """The words up to a script that is the first argument, and those after it."""
        taken = 0
        for place, word in enumerate(words):
            if taken:
                taken -= 1
            elif word.startswith("-") and word != "-":
                action = self._option_string_actions.get(word)
                taken = int(action is not None and action.nargs is None)
            else:
                return (words[: place + 1], words[place + 1 :]) if is_script(word) else (words, ())
        return words, ()


def build_parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    parser = _Parser(
        prog="amptui",
        description="Watch and understand mixed-precision training.",
        epilog="Exit status: 0 done, stopped or detached; 1 failed; 2 usage error; 3 done or stopped, but "
        "records or checkpoints could not be saved; 129 terminal closed (the run continues); 130 Ctrl+C; "
        "143 SIGTERM; 128 + N for any other signal N.",
    )
    parser.add_argument("--version", action="version", version=f"amptui {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_train(commands.add_parser("train", help="train a model and watch it"))
    _add_script(commands.add_parser("run", help="run a script of yours and watch its training"))
    _add_attach(commands.add_parser("attach", help="watch a live run from any terminal"))
    _add_runs(commands.add_parser("runs", help="list runs and their status"))
    _add_advise(commands.add_parser("advise", help="recommend a precision for a model or a script"))
    _add_bench(commands.add_parser("bench", help="benchmark a model in every precision"))
    _add_replay(commands.add_parser("replay", help="play back a recorded run"))
    _add_compare(commands.add_parser("compare", help="compare runs: curves, figures, final losses"))
    _add_export(commands.add_parser("export", help="export a run to CSV, TensorBoard or HTML"))
    _add_doctor(commands.add_parser("doctor", help="check what this machine can do"))
    commands.add_parser("models", help="list the built-in models")
    return parser


# ---------------------------------------------------------------------------------- commands


def _add_train(train: argparse.ArgumentParser) -> None:
    train.description = "Train a model and watch it live. Without a terminal, write plain lines."
    train.epilog = (
        "Ctrl+C, SIGTERM, and the signals that batch systems send before they kill a job (SIGUSR1, SIGUSR2, "
        "SIGXCPU, SIGALRM), finish the step, however long it takes, write a checkpoint and end the run; a "
        "second Ctrl+C or SIGTERM ends it at once. In a Slurm script, use #SBATCH --signal=USR1@60, and "
        "--run-dir DIR --resume to continue after a requeue."
    )
    _add_model(train, needed=False)
    add = train.add_argument_group("training").add_argument
    add("--epochs", type=positive_int, metavar="N", help="epochs to train (default: the model's)")
    add("--steps", type=positive_int, metavar="N", help="stop after N steps")
    add("--batch-size", type=positive_int, metavar="N", help="samples per batch (default: the model's)")
    add("--accumulate", type=positive_int, metavar="N", help="accumulate N batches per optimizer step")
    _add_recipe(add)
    add("--validate-every", type=positive_int, metavar="N", help="also validate every N steps")
    add("--validation-batches", type=positive_int, metavar="N", help="validate on at most N batches")
    add = train.add_argument_group("precision and device").add_argument
    add("--precision", choices=PRECISIONS, help=_PRECISION_HELP)
    add("--amp-dtype", choices=AMP_PRECISIONS, help="what AMP means (default: fp16 on CUDA, else bf16)")
    _add_device(add)
    add("--nproc", type=positive_int, metavar="N", help="train with N processes (DDP), one per GPU")
    add("--fsdp", action="store_true", help="shard the model across the processes (FSDP2) instead of DDP")
    add(
        "--max-restarts",
        type=restarts,
        metavar="N",
        help="if a process of --nproc fails, start all again from the last checkpoint, at most N times",
    )
    add(
        "--hang-timeout",
        type=seconds_or_never,
        metavar="SECONDS",
        help="end a run of several processes if one makes the others wait so long, and name it; 0: never "
        "(default: 600)",
    )
    _add_speed(add)
    add = train.add_argument_group("files").add_argument
    _add_data(add)
    add("--run-dir", type=path, metavar="DIR", help="folder of this run (default: a new one)")
    add(
        "--resume",
        nargs="?",
        const="",
        metavar="RUN",
        help="resume a run from its last checkpoint, with the options it was started with (default: the "
        "newest; of a run that is not yours, MODEL and paths are repeated). With --run-dir: resume there, "
        "or start",
    )
    add(
        "--checkpoint-every",
        type=positive_int,
        metavar="N",
        help="also write a checkpoint every N steps (default: after each epoch and at the end)",
    )
    add(
        "--stop-timeout",
        type=positive_float,
        metavar="SECONDS",
        help="end a run that was asked to stop after so many seconds, without a checkpoint, if its step is "
        "not over (default: wait for the step)",
    )
    add(
        "--init-weights",
        type=absolute_path,
        metavar="FILE",
        help="start from a state_dict saved with torch.save or, by its suffix, safetensors",
    )
    add(
        "--save-weights",
        type=absolute_path,
        metavar="FILE",
        help="save the state_dict when the run is done or stopped, not if it failed: the model's, or that of "
        "the experiment's AveragedModel",
    )
    add = train.add_argument_group("output").add_argument
    add("--detach", action="store_true", help="train in the background; `amptui attach` opens the screen")
    add("--headless", action="store_true", help="write plain lines instead of showing the screen")
    add("--json", action="store_true", help="write every record as a JSON line, at the end the answer on AMP")
    _add_quiet(add)
    _add_fps(add)


def _add_script(script: argparse.ArgumentParser) -> None:
    script.usage = "amptui run [options] (SCRIPT | -m MODULE) [ARGUMENT ...]"
    script.description = (
        "Run a Python script in a fresh process, and show the run that it opens with amptui.observe(); with "
        "--observe, any script that trains with torch.optim. Without a terminal, pass the script through."
    )
    script.epilog = (
        "The exit status is the script's, unless the screen is closed before the script ends; 3 instead of 0 "
        "if records could not be saved."
    )
    add = script.add_argument
    add("-m", dest="module", action="store_true", help="run a module, as `python -m MODULE` does")
    add("--observe", action="store_true", help="observe a script in which nothing calls amptui")
    add("--run-dir", type=path, metavar="DIR", help="folder of this run (default: a new one)")
    add("--headless", action="store_true", help="pass the script through instead of showing the screen")
    _add_quiet(add)
    _add_fps(add)
    add("script", metavar="SCRIPT", help="the script's file, torchrun, or after -m a module")
    rest = add("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="the script's own arguments")
    rest.required = False  # argparse says of a missing SCRIPT that both are required


def _add_attach(attach: argparse.ArgumentParser) -> None:
    attach.description = "Show a live run. Leaving the screen does not stop it."
    _add_run(attach, default="the newest live run")
    _add_quiet(attach.add_argument)
    _add_fps(attach.add_argument)


def _add_runs(runs: argparse.ArgumentParser) -> None:
    runs.description = (
        "List runs with their status and progress, the one written last first: as many as the terminal has "
        f"lines for, or the newest {PAGE_RUNS} in a pipe, a file or JSON. How many older ones there are is "
        "said below the list, or on standard error."
    )
    how_many = runs.add_mutually_exclusive_group()
    how_many.add_argument("--limit", type=positive_int, metavar="N", help="list the newest N runs")
    how_many.add_argument(
        "--all", dest="limit", action="store_const", const=sys.maxsize, help="list all runs"
    )
    runs.add_argument("--json", action="store_true", help="write one JSON line for each run")


def _add_advise(advise: argparse.ArgumentParser) -> None:
    advise.usage = "amptui advise [options] (MODEL | SCRIPT [ARGUMENT ...])"
    advise.description = (
        "Recommend FP32, bf16 or fp16 for a model or a script, from measurements: speed, memory, overflow, "
        "underflow, agreement of the gradients, and the loss from the same start. Nothing is saved. A SCRIPT "
        "calls amptui.watch() or a framework's integration; it is run, and stopped after the measurement."
    )
    advise.epilog = "Options come before a SCRIPT: what follows it are its own arguments."
    assert isinstance(advise, _Parser), "made by the parser's own class"
    advise.splits_script = True
    _add_model(advise)
    rest = advise.add_argument("arguments", nargs="*", metavar="ARGUMENT", help="the script's own arguments")
    rest.required = False
    add = advise.add_argument_group("measurement").add_argument
    add(
        "--minutes",
        type=positive_float,
        default=ADVISE_MINUTES,
        metavar="X",
        help=f"measure for X minutes at most, from the first step on (default: {ADVISE_MINUTES:g})",
    )
    add(
        "--precisions",
        type=precisions,
        metavar="A,B,...",
        help="precisions to compare with FP32 (default: all that are useful here)",
    )
    add(
        "--loss-steps",
        type=count_or_none,
        default=ADVISE_LOSS_STEPS,
        metavar="N",
        help="compare the loss after N steps (40 or more) from the same start, with several seeds; 0: not "
        f"(default: {ADVISE_LOSS_STEPS})",
    )
    add = advise.add_argument_group("model and device, not for a SCRIPT").add_argument
    add("--batch-size", type=positive_int, metavar="N", help="samples per batch (default: the model's)")
    add("--accumulate", type=positive_int, metavar="N", help="accumulate N batches per optimizer step")
    _add_recipe(add)
    _add_device(add)
    _add_speed(add)
    _add_data(add)
    add = advise.add_argument_group("output").add_argument
    add(
        "--lines",
        choices=FRAMEWORKS,
        help="print the lines to paste for one of these (default: PyTorch in full, the others in brief)",
    )
    add("--json", action="store_true", help="write one JSON object to standard output")
    add("--html", type=path, metavar="FILE", help="write a self-contained page to share")


def _add_bench(bench: argparse.ArgumentParser) -> None:
    bench.description = (
        "Benchmark a model in every precision, in alternating blocks of steps; with --compile, eagerly too."
    )
    _add_model(bench)
    add = bench.add_argument_group("benchmark").add_argument
    add(
        "--precisions",
        type=precisions,
        metavar="A,B,...",
        help="precisions to compare; the first is the baseline (default: all that are useful here)",
    )
    add(
        "--batch-size",
        type=positive_ints,
        default=(None,),
        metavar="N[,N...]",
        help="samples per step; several sizes run one after the other (default: the model's)",
    )
    add(
        "--rounds",
        type=rounds,
        metavar="N",
        help=f"stop after N rounds (default: when ratios are known to 1%%, at most {MAX_ROUNDS})",
    )
    _add_recipe(add)
    add = bench.add_argument_group("model and device").add_argument
    _add_device(add)
    _add_speed(add)
    add = bench.add_argument_group("files and output").add_argument
    _add_data(add)
    add("--run-dir", type=path, metavar="DIR", help="save the runs there (default: none is saved)")
    add("--json", action="store_true", help="write one JSON object to standard output instead of tables")


def _add_replay(replay: argparse.ArgumentParser) -> None:
    replay.description = "Play back a recorded run on the screen, without torch or a GPU."
    _add_run(replay)
    replay.add_argument(
        "--speed", type=positive_float, default=1.0, metavar="X", help="playback speed (default: 1)"
    )


def _add_compare(compare: argparse.ArgumentParser) -> None:
    compare.description = (
        "Compare finished or running runs on one screen. Runs that differ only in the seed are one group. "
        "Without a terminal, write tables."
    )
    add = compare.add_argument
    add(
        "runs",
        metavar="RUN",
        nargs="+",
        help="a run's folder, journal or name, or a model's name for its newest run; the first is the "
        "baseline",
    )
    add("--target-loss", type=finite_float, metavar="X", help="show the training time to a loss of X")
    how = compare.add_mutually_exclusive_group()
    how.add_argument("--plain", action="store_true", help="write tables instead of showing the screen")
    how.add_argument("--json", action="store_true", help="write one JSON object to standard output")
    add("--html", type=path, metavar="FILE", help="write a self-contained page to share")


def _add_export(export: argparse.ArgumentParser) -> None:
    export.description = "Export a run to one or more formats."
    _add_run(export)
    export.add_argument(
        "--csv", type=path, metavar="FILE", help="a table with one row per step; one of the ranks beside it"
    )
    export.add_argument("--tensorboard", type=path, metavar="DIR", help="event files for TensorBoard")
    export.add_argument("--html", type=path, metavar="FILE", help="a self-contained page to share")


def _add_doctor(doctor: argparse.ArgumentParser) -> None:
    doctor.description = (
        "Check what this machine can do. Each problem is listed with its fix. "
        "The exit status is 1 if training cannot run."
    )
    doctor.add_argument("--json", action="store_true", help="write every check as one JSON line")


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
        help=f"a run's folder, journal or name, or a model's name for its newest run (default: {default})",
    )


def _add_quiet(add: _Add) -> None:
    add(
        "--quiet",
        action="store_true",
        help="no bell and no desktop notification at the end, a failure, an alarm or a question",
    )


def _add_fps(add: _Add) -> None:
    add(
        "--fps",
        type=frames_per_second,
        metavar="X",
        help="frames per second (default: 2 to 4, fewer if drawing takes more than 1%% of the cores)",
    )


def _add_recipe(add: _Add) -> None:
    add("--lr", type=positive_float, metavar="X", help="learning rate (default: the model's)")
    add("--clip-norm", type=positive_float, metavar="X", help="clip the gradient norm, after unscaling")
    add("--seed", type=seed, metavar="N", help="random seed (default: 0)")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="set any field of the experiment")


def _add_device(add: _Add) -> None:
    add("--device", type=device, metavar="DEVICE", help="auto, cpu, cuda or cuda:N (default: auto)")


def _add_speed(add: _Add) -> None:
    add("--channels-last", action="store_const", const=True, help="use the channels_last memory format")
    add(
        "--cudnn-benchmark",
        action="store_const",
        const=True,
        help="let cuDNN measure its algorithms for each new shape and use the fastest (GPU only)",
    )
    add(
        "--compile",
        choices=_COMPILE_CHOICES,
        nargs="?",
        const="default",
        metavar="MODE",
        help="compile the model with torch.compile; MODE: default, reduce-overhead (CUDA graphs), "
        "max-autotune, or off to resume without",
    )


def _add_data(add: _Add) -> None:
    add(
        "--data",
        choices=("auto", "real", "synthetic"),
        help="auto: real data, or synthetic data if it is not available (default: auto)",
    )
    add("--workers", type=workers, metavar="N", help="processes that load data (default: the model's)")
    add("--data-dir", type=path, metavar="DIR", help="folder of data sets (default: ~/.cache/amptui)")


def _with_compile_mode(arguments: Sequence[str]) -> list[str]:
    """Each bare ``--compile`` with its mode: argparse would take whatever word follows for one."""
    return [
        "--compile=default" if _is_compile(word) and following not in _COMPILE_CHOICES else word
        for word, following in zip_longest(arguments, arguments[1:])
    ]


def _is_compile(word: str) -> bool:
    """Whether it is the option, perhaps shortened as argparse allows."""
    return len(word) >= len("--co") and "--compile".startswith(word)
