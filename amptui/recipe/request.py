"""What a person asked to have trained, measured or listed, as the command line understood it; torch-free."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from amptui.base.errors import UsageError, did_you_mean
from amptui.models import CATALOGUE
from amptui.records.codec import Codec

CompileMode = Literal["default", "reduce-overhead", "max-autotune"]
"""``torch.compile``'s modes."""

COMPILE_MODES: tuple[CompileMode, ...] = get_args(CompileMode)

SAFETENSORS = ".safetensors"
"""The suffix of files of weights in that format; all others hold what ``torch.save`` writes."""

PAGE_RUNS = 100
"""Runs that are listed in a pipe, a file or JSON if the command line sets no limit."""

ADVISE_MINUTES, ADVISE_LOSS_STEPS = 3.0, 300
"""How long a measurement for a recommendation takes at most; the steps after which losses are compared."""

HANG_SECONDS = 600.0
"""A rank that makes all others wait so long is given up, unless the command line says otherwise."""

OPTION_NAMES = {
    "learning_rate": "lr",
    "amp_precision": "amp_dtype",
    "settings": "set",
    "compile_mode": "compile",
}
"""The options of those fields of ``TrainRequest`` that are called otherwise."""

_NOT_ASKED = frozenset({"checkpoint_dir", "resume", "interactive"})
"""What is a process's own and not the run's."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Where to find an experiment's class."""

    text: str
    """What the user typed."""
    name: str
    """The name on the screen and in the run's folder."""
    module: str = ""
    path: Path | None = None
    class_name: str = ""
    """Empty: the one experiment that the module defines."""

    @property
    def anywhere(self) -> str:
        """Text for the same model that works in every working folder."""
        if self.path is None:
            return self.text
        return f"{self.path.resolve()}:{self.class_name}".rstrip(":")


def parse_model(text: str) -> ModelSpec:
    """``mnist-deep``, ``path/to/file.py[:Class]`` or ``package.module:Class``; raises UsageError."""
    if text in CATALOGUE:
        return ModelSpec(text, text, module=CATALOGUE[text][0])
    place, _, class_name = text.partition(":")
    if place.endswith(".py") or "/" in place:
        path = Path(os.path.expanduser(place))  # noqa: PTH111 - unlike expanduser(), never raises
        if not os.path.isfile(path):  # noqa: PTH113 - unlike is_file(), does not raise for a path that is too long
            raise UsageError(
                f"no model file {place}", hint="check the path, or see `amptui models` for names"
            )
        if path.suffix != ".py":
            raise UsageError(f"{place} is not a Python file", hint="a model file ends in .py")
        return ModelSpec(text, path.stem, path=path, class_name=class_name)
    if class_name:
        return ModelSpec(text, class_name, module=place, class_name=class_name)
    choices = f"there are {', '.join(CATALOGUE)}, or give a path to a .py file"
    raise UsageError(f"no model named {text!r}", hint=did_you_mean(text, CATALOGUE, choices))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """One training as asked for; None leaves a choice to the experiment or to the device."""

    model: str
    """A catalogue name, ``path/to/file.py[:Class]`` or ``package.module:Class``."""
    precision: str | None = None
    """None is ``fp32``."""
    amp_precision: str | None = None
    """AMP of a run that starts in neither ``fp16`` nor ``bf16``; None leaves that to the device."""
    device: str = "auto"
    epochs: int | None = None
    steps: int | None = None
    min_steps: int | None = None
    """Go on for so many steps even if the epochs have fewer: a benchmark ends with its comparison."""
    batch_size: int | None = None
    learning_rate: float | None = None
    clip_norm: float | None = None
    """Largest L2 norm of all gradients together, unscaled; None does not clip."""
    nproc: int = 1
    """Processes that train together, each on a device of its own."""
    fsdp: bool = False
    """Divide weights, gradients and optimizer states among these processes (FSDP2) instead of DDP."""
    max_restarts: int = 0
    """How often they are all started again after one has failed, at most."""
    hang_timeout: float | None = None
    """Seconds for which one of these processes may make the others wait before all end; 0 is for ever, None
    ``HANG_SECONDS``."""
    accumulate: int = 1
    """Batches whose gradients are accumulated for each optimizer step."""
    seed: int = 0
    data_dir: Path = Path()
    data: Literal["auto", "real", "synthetic"] = "auto"
    workers: int | None = None
    """Processes that load samples; None leaves that to the experiment and the device."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Fields of the experiment by name, as text: ``--set width=128``."""
    interactive: bool = True
    """Somebody can attach and press a key: a run that cannot go on pauses and asks instead of failing."""
    probes: bool = True
    """Look into gradients and modules now and then; without, only where a step itself needs it."""
    max_rounds: int | None = None
    """Rounds of a comparison in turns at most; None leaves that to its intervals."""
    validation: bool = True
    """Validate at each epoch's end, where there is validation data."""
    validate_every: int | None = None
    """Steps from one validation to the next, besides those at each epoch's end."""
    validation_batches: int | None = None
    """The most batches of a validation; None is all of them."""
    channels_last: bool = False
    """Keep the weights of convolutions channels last, the layout in which Tensor Cores read them."""
    cudnn_benchmark: bool = False
    """Let cuDNN measure its algorithms for each new shape and take the fastest."""
    compile_mode: CompileMode | None = None
    """``torch.compile``'s mode for the model; None does not compile."""
    init_weights: str | None = None
    """The file of a json_fields ``state_dict`` that the model starts with: its absolute path."""
    save_weights: str | None = None
    """Where the model's ``state_dict`` is written at the end, also of a stopped run: an absolute path."""
    checkpoint_dir: Path | None = None
    """Where checkpoints are kept; None keeps none."""
    checkpoint_every: int | None = None
    """Steps from one checkpoint to the next, besides those at each epoch's end."""
    resume: bool = False
    """Go on from the newest whole checkpoint in ``checkpoint_dir``."""

    def as_json(self) -> dict[str, Any]:
        """What was asked for as JSON values, for ``run.json``; where and how it is run is left out."""
        values = asdict(self) | {"data_dir": str(self.data_dir), "settings": dict(self.settings)}
        return {name: value for name, value in values.items() if name not in _NOT_ASKED}

    @classmethod
    def from_json(cls, json_fields: Mapping[str, Any]) -> "TrainRequest":
        """The request that :meth:`as_json` wrote; fields of other versions are left out.

        Raises ValueError where it names no model, or where a value has another type than it is written with.
        """
        saved_fields = {name: value for name, value in json_fields.items() if name not in _NOT_ASKED}
        return Codec[TrainRequest](cls).read(saved_fields)


def option_of(name: str) -> str:
    """The option that sets a field of ``TrainRequest``: ``--lr``."""
    return f"--{OPTION_NAMES.get(name, name).replace('_', '-')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviseRequest:
    """What a recommendation is asked for: a model as ``training`` has it, or a script."""

    training: TrainRequest
    """Of a script only its name counts, which is the first word of ``script``."""
    script: tuple[str, ...] = ()
    """The script and its arguments; empty for a model."""
    precisions: tuple[str, ...] | None = None
    """What FP32 is compared with; None is all that pay to be looked at here."""
    minutes: float
    """What the measurement takes at most, from the first step on."""
    loss_steps: int
    """Steps of each training from the same start; 0 compares no losses."""
