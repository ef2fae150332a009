"""The parser of the command line, what its options take as values, and those that several commands have.

argparse, because click would be one more dependency and no fewer lines.
"""

import argparse
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from itertools import zip_longest
from pathlib import Path
from typing import Any, NoReturn

from amptui.base.errors import UsageError, did_you_mean
from amptui.base.notify_url import VARIABLE as NOTIFY_VARIABLE
from amptui.base.prompt import put
from amptui.base.webhook import parse_webhook
from amptui.models import CATALOGUE
from amptui.recipe.request import COMPILE_MODES, OPTION_NAMES, TrainRequest
from amptui.records.run import AMP_PRECISIONS, PRECISIONS, parse_precision

_COMPILE_CHOICES = (*COMPILE_MODES, "off")

_MONITORS = r"(watch|observe|PrecisionMonitor|Precision)"
"""The names by which a script has itself watched."""

MAX_ROUNDS = 24
"""Rounds of a benchmark or an A/B test at most."""

_GPUS = ("cuda", "xpu", "mps")
"""The types of devices with a number: NVIDIA's and AMD's, Intel's, Apple's. Kept here without torch."""

_MAX_INT, _MAX_WORKERS = 2**63 - 1, 1024
"""What counts steps has 64 bits; each worker is a process."""

_Value = Callable[[str], Any]


# Values of options: each function raises ArgumentTypeError.


def _number(
    kind: type[int] | type[float],
    description: str,
    allowed: Callable[[float], bool],
    most: float = math.inf,
) -> _Value:
    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not allowed(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not {description}")
        if value > most:
            raise argparse.ArgumentTypeError(f"{text!r} is more than {most:,}")
        return value

    return parse


def _several(parse: _Value) -> _Value:
    """Values with commas between them, without duplicates, in the order given."""
    return lambda text: tuple(dict.fromkeys(parse(part.strip()) for part in text.split(",")))


def precision(text: str, choices: Sequence[str] = PRECISIONS) -> str:
    """One of ``choices``, also by the name of its dtype."""
    try:
        return parse_precision(text, choices)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


positive_int = _number(int, "a whole number above 0", lambda value: value >= 1, _MAX_INT)
positive_ints = _several(positive_int)
rounds = _number(int, "a whole number above 0", lambda value: value >= 1, MAX_ROUNDS)
count = _number(int, "a whole number, 0 or more", lambda value: value >= 0, _MAX_INT)
loss_steps = _number(  # after fewer steps, losses are still close to the first one
    int, "0, or a whole number from 40 on", lambda value: value == 0 or value >= 40, _MAX_INT
)
workers = _number(int, "a whole number, 0 or more", lambda value: value >= 0, _MAX_WORKERS)
seed = _number(int, "a whole number from 0 to 2^64 - 1", lambda value: 0 <= value < 2**64)
positive_float = _number(float, "a number above 0", lambda value: 0 < value < math.inf)
seconds_or_never = _number(float, "a number of seconds, or 0", lambda value: 0 <= value < math.inf)
finite_float = _number(float, "a finite number", math.isfinite)
precisions = _several(precision)


def webhook_url(text: str) -> str:
    """A URL, which is a secret: no message repeats it."""
    try:
        parse_webhook(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def path(text: str) -> Path:
    """A path with ``~`` expanded, which a shell leaves alone in ``--option=~/folder``."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise argparse.ArgumentTypeError(f"{text!r}: no such home folder") from None


def absolute_path(text: str) -> str:
    """An absolute path: a resumed run may start in another folder."""
    return str(path(text).absolute())


def device(text: str) -> str:
    """A device as torch names it, or ``auto``."""
    kind, colon, index = text.partition(":")
    if text in ("auto", "cpu", *_GPUS) or (kind in _GPUS and colon and index.isdecimal()):
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is not auto, cpu, cuda, cuda:N, xpu or mps")


class Parser(argparse.ArgumentParser):
    """Reports an error in one line, with a hint; argparse would print the whole usage."""

    def _print_message(self, message: str, _file: Any = None) -> None:
        put(message)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"see `{self.prog} --help`")

    splits_script = False
    """Whether what follows a script is the script's own."""

    # argparse's own overloads differ in the type of the namespace only.
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        own: Sequence[str] = ()
        if self.splits_script:
            args, own = self._split(args)
        if "--compile" in self._option_string_actions:
            # A bare one with its mode: argparse would take any word that follows.
            args = [
                "--compile=default"
                if len(word) > 3 and "--compile".startswith(word) and following not in _COMPILE_CHOICES
                else word
                for word, following in zip_longest(args, args[1:])
            ]
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:  # refused here, where the options are known: argparse leaves that to the first parser
            word = next((word for word in unknown if word.startswith("-")), unknown[0]).partition("=")[0]
            what = "option" if word.startswith("-") else "argument"
            hint = did_you_mean(word, self._option_string_actions, f"see `{self.prog} --help`")
            raise UsageError(f"no {what} {word} here", hint=hint)
        if own:
            options.arguments = [*options.arguments, *own]
        return options, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = action.choices or ()
        if action.dest != "command" or value in choices:
            return super()._check_value(action, value)
        hint = did_you_mean(value, choices, "see `amptui --help`")
        if value in CATALOGUE or value.endswith(".py"):
            hint = f"did you mean `amptui {'run' if is_script(value) else 'train'} {value}`?"
        raise UsageError(f"no command {value}", hint=hint)

    def _split(self, words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
        """The words up to a script that is the first argument, and those after it."""
        values = 0
        for place, word in enumerate(words):
            if values:
                values -= 1
            elif word.startswith("-") and word != "-":
                action = self._option_string_actions.get(word)
                values = int(action is not None and action.nargs is None)
            else:
                return (words[: place + 1], words[place + 1 :]) if is_script(word) else (words, ())
        return words, ()


def is_script(text: str) -> bool:
    """Whether ``text`` names a Python file that is no model file: it is watched, or has no class with a base.

    Its text says so: to import it would run it.
    """
    path = Path(text)
    try:
        if path.suffix != ".py" or not path.is_file():
            return False
        source = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False
    aliases = "|".join(["amptui", *re.findall(r"import amptui[\w.]* as (\w+)", source)])
    imports_monitor = rf"^\s*from amptui[\w.]* import (\([^)]*|.*)\b{_MONITORS}\b"
    calls_monitor = rf"\b({aliases})(\.\w+)*\.{_MONITORS}\("
    is_watched = re.search(f"{imports_monitor}|{calls_monitor}", source, re.MULTILINE)
    return bool(is_watched) or not re.search(r"^class \w+\([^)]", source, re.MULTILINE)


RUN_HELP = "a run's folder, journal or name, or a model's name for its newest run (default: {})"

SHARED: Mapping[str, Mapping[str, Any]] = {
    "run": {"metavar": "RUN", "nargs": "?", "default": "", "help": RUN_HELP.format("the newest")},
    "--trust": {"action": "store_true", "help": "read the run even if it is another user's"},
    "--quiet": {"action": "store_true", "help": "turn off the bell and desktop notifications"},
    "--notify": {
        "type": webhook_url,
        "metavar": "URL",
        "help": "also post to a webhook (Slack, Discord, ntfy and others) what rings the bell; see "
        "demo/guide/runs.md. AMPTUI_NOTIFY=URL does the same, and no list of processes shows it",
    },
    "model": {"metavar": "MODEL", "help": "a name, path/to/file.py[:Class] or package.module:Class"},
    "--batch-size": {
        "type": positive_int,
        "metavar": "N",
        "help": "samples per batch (default: the model's)",
    },
    "--accumulate": {"type": positive_int, "metavar": "N", "help": "accumulate N batches per optimizer step"},
    "--lr": {"type": positive_float, "metavar": "X", "help": "learning rate (default: the model's)"},
    "--clip-norm": {
        "type": positive_float,
        "metavar": "X",
        "help": "clip the gradient norm, after unscaling",
    },
    "--seed": {"type": seed, "metavar": "N", "help": "random seed (default: 0)"},
    "--set": {
        "action": "append",
        "default": [],
        "metavar": "NAME=VALUE",
        "help": "set any field of the experiment",
    },
    "--device": {
        "type": device,
        "metavar": "DEVICE",
        "help": "auto, cpu, cuda, cuda:N, xpu or mps (default: auto)",
    },
    "--channels-last": {
        "action": "store_const",
        "const": True,
        "help": "use the channels_last memory format",
    },
    "--cudnn-benchmark": {
        "action": "store_const",
        "const": True,
        "help": "let cuDNN measure its algorithms for each new shape and use the fastest (GPU only)",
    },
    "--compile": {
        "choices": _COMPILE_CHOICES,
        "nargs": "?",
        "const": "default",
        "metavar": "MODE",
        "help": "compile the model with torch.compile; MODE: default, reduce-overhead (CUDA graphs), "
        "max-autotune, or off (to resume uncompiled)",
    },
    "--data": {
        "choices": ("auto", "real", "synthetic"),
        "help": "auto: real data, or synthetic data if it is not available (default: auto, but real with "
        "--data-dir)",
    },
    "--workers": {
        "type": workers,
        "metavar": "N",
        "help": "processes that load data (default: the model's)",
    },
    "--data-dir": {
        "type": path,
        "metavar": "DIR",
        "help": "folder of data sets (default: ~/.cache/amptui)",
    },
    "--run-dir": {"type": path, "metavar": "DIR", "help": "folder of this run (default: a new one)"},
    "--json": {"action": "store_true", "help": "write one JSON object to standard output"},
    "--html": {"type": path, "metavar": "FILE", "help": "write a self-contained page to share"},
}
"""Arguments that several commands have."""


def add_shared(group: argparse._ActionsContainer, *names: str, **changes: Any) -> None:
    """Add those of ``SHARED``, with ``changes`` for this command."""
    for name in names:
        group.add_argument(name, **{**SHARED[name], **changes})


def hand_over_webhook(url: str | None) -> None:
    """Leave it to the process of the run, in the environment. Raises UsageError if no URL is there."""
    if url is not None:
        os.environ[NOTIFY_VARIABLE] = url
    elif NOTIFY_VARIABLE in os.environ:
        try:
            parse_webhook(os.environ[NOTIFY_VARIABLE])
        except ValueError as error:
            raise UsageError(f"{NOTIFY_VARIABLE}: {error}", hint="correct or unset it") from None


def with_data(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a new training: a folder of data that was named has to have them."""
    from amptui.runs.rundir import default_data_dir

    if "data_dir" not in given:
        return given | {"data_dir": default_data_dir()}
    return {"data": "real"} | given


def training_fields(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of ``TrainRequest`` that the command line sets. Raises UsageError."""
    names = [field.name for field in fields(TrainRequest) if field.name != "resume"]  # that names a run
    values = {name: getattr(options, OPTION_NAMES.get(name, name), None) for name in names}
    settings = {}
    for pair in options.set:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            what = "name" if equals else "value"
            raise UsageError(f"--set {pair} has no {what}", hint="write --set NAME=VALUE")
        settings[name.strip().replace("-", "_")] = value
    values["settings"] = settings or None
    values["data_dir"] = options.data_dir and options.data_dir.absolute()
    given = {name: value for name, value in values.items() if value is not None}
    if "data_dir" in given and "data" not in given and not given["data_dir"].is_dir():
        what = f"--data-dir {given['data_dir']} is not a folder"
        raise UsageError(what, hint="correct the path, or create the folder and data is downloaded into it")
    first = given.get("precision")
    if first in AMP_PRECISIONS and given.get("amp_precision", first) != first:
        what = f"AMP is to be {given['amp_precision']}, but the run starts in {first}"
        raise UsageError(what, hint="leave out --amp-dtype")
    return given | {"compile_mode": None} if given.get("compile_mode") == "off" else given
