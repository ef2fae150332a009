"""The recommendation that follows from what was measured, with the command and the lines to paste."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from amptui.base.errors import UsageError
from amptui.base.masking import masked
from amptui.recipe.request import AdviseRequest, TrainRequest, option_of
from amptui.records.run import AMP_PRECISIONS
from amptui.reports.advise import advise_words
from amptui.reports.advise.advice import Advice, recommend
from amptui.reports.advise.evidence import (
    Candidate,
    Evidence,
    candidates,
    has_other_weights,
)
from amptui.reports.advise.loss_race import LossRace
from amptui.reports.advise.stages import BASELINE
from amptui.runs.rundir import default_data_dir
from amptui.telemetry.view import SessionView

NAMES: Mapping[str, str] = {
    "pytorch": "PyTorch",
    "lightning": "Lightning",
    "accelerate": "Accelerate",
    "huggingface": "Hugging Face",
    "amptui": "amptui",
}
"""Of what there are lines for, in this order."""

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp8": "bfloat16"}

_FLOAT8 = (
    "from torchao.float8 import Float8LinearConfig, convert_to_float8_training",
    "def takes_part(layer, name):",
    "    sizes = layer.in_features, layer.out_features",
    "    return type(layer) is torch.nn.Linear and all(size % 16 == 0 for size in sizes)",
    "config = Float8LinearConfig(pad_inner_dim=True)",
    "convert_to_float8_training(model, config=config, module_filter_fn=takes_part)",
)
"""The layers that amptui takes, in torchao's own words."""

_COMPILE = "model = torch.compile(model)"

_ALLOW_TF32 = (
    'torch.backends.cuda.matmul.fp32_precision = "tf32"',
    'torch.backends.cudnn.fp32_precision = "tf32"',
)


_CANDIDATES = ("bf16", "fp16", "fp8", "tf32")
"""What FP32 is compared with, in this order."""


def candidate_names(request: AdviseRequest) -> tuple[str, ...]:
    """The precisions that are asked about, FP32 not among them. Raises UsageError if there are none."""
    if request.precisions is None:
        return _CANDIDATES
    names = tuple(name for name in request.precisions if name != BASELINE)
    if not names:
        raise UsageError(
            "nothing to compare FP32 with", hint="name one of bf16, fp16, fp8, tf32 with --precisions"
        )
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Everything that one command has found."""

    subject: str
    """The model or the script, as it was asked for."""
    is_script: bool
    evidence: Evidence
    candidates: tuple[Candidate, ...]
    advice: Advice
    race: LossRace | None
    lines: Mapping[str, tuple[str, ...]]
    """What to paste."""
    seconds: float
    """What the measurement took, from the first step on."""
    interrupted: bool = False

    @property
    def view(self) -> SessionView:
        """The newest view."""
        return self.evidence.view

    @property
    def missing(self) -> list[str]:
        """What was not measured, each with its reason."""
        return list(advise_words.not_measured(self.candidates, self.evidence.missing, self.race))

    @property
    def how_measured(self) -> list[str]:
        """What the numbers are of."""
        return list(advise_words.how_measured(self.view.compared, self.race))

    @property
    def notes(self) -> list[tuple[str, str]]:
        """What stands below the headline: a label and a sentence each."""
        labelled = [
            ("why", advise_words.reasons(self.advice, self.view)),
            ("look out", advise_words.cautions(self.advice, self.candidates, self.view)),
        ]
        return [(label, text) for label, texts in labelled for text in dict.fromkeys(texts)]


def recommendation(
    request: AdviseRequest,
    evidence: Evidence,
    precisions: tuple[str, ...],
    race: LossRace | None,
    *,
    seconds: float,
) -> Recommendation:
    """What follows from the evidence."""
    options = candidates(evidence, precisions, race)
    advice = recommend(options, other_weights=has_other_weights(evidence.view))
    run, compiles = evidence.view.run, request.training.compile_mode is not None
    lines: Mapping[str, tuple[str, ...]] = {}
    if advice.precision is not None and run is not None:
        lines = lines_for(
            advice.precision,
            run.device.partition(":")[0],
            command="" if request.script else train_command(request, advice.precision),
            clip_norm=request.training.clip_norm,
            compiles=compiles,
        )
    return Recommendation(
        subject=request.script[0] if request.script else request.training.model,
        is_script=bool(request.script),
        evidence=evidence,
        candidates=options,
        advice=advice,
        race=race,
        lines=lines,
        seconds=seconds,
    )


_OPTIONS = (
    *("batch_size", "accumulate", "learning_rate", "clip_norm", "seed", "device", "data", "workers"),
    *("data_dir", "channels_last", "cudnn_benchmark", "compile_mode"),
)
"""Fields of a request that the command line of its training has, unless they are the usual ones."""


def train_command(request: AdviseRequest, precision: str) -> str:
    """The command line that trains the same model in ``precision``, with all its options."""
    training, usual = request.training, TrainRequest(model="")
    words = ["amptui", "train", training.model, "--precision", precision]
    for name in _OPTIONS:
        value = getattr(training, name)
        if value not in (getattr(usual, name), default_data_dir()):
            words += [option_of(name)] if value is True else [option_of(name), str(value)]
    for name, text in training.settings.items():
        words += ["--set", masked(f"{name}={text}")]  # it stands on a page, too
    return shlex.join(words)


def lines_for(
    precision: str,
    device_type: str,
    *,
    command: str = "",
    clip_norm: float | None = None,
    compiles: bool = False,
) -> Mapping[str, tuple[str, ...]]:
    """The lines by framework; none where nothing has to be changed, as for FP32 that is not compiled.

    ``device_type`` is as ``torch.autocast`` takes it; ``command`` the command line that trains so, empty for
    a script, whose own code has to change.
    """
    compiled = (_COMPILE,) if compiles else ()
    lines: dict[str, tuple[str, ...]] = {}
    if precision in _DTYPES:
        lines["pytorch"] = _pytorch(precision, device_type, clip_norm, compiled)
    elif compiled or precision == "tf32":
        lines["pytorch"] = (*(_ALLOW_TF32 if precision == "tf32" else ()), *compiled)
    if precision in AMP_PRECISIONS:
        lines |= {
            "lightning": (f'Trainer(precision="{precision.removeprefix("fp")}-mixed")',),
            "accelerate": (f'Accelerator(mixed_precision="{precision}")',),
            "huggingface": (f"TrainingArguments({precision}=True)",),
        }
    elif precision == "tf32":
        lines |= dict.fromkeys(("lightning", "accelerate"), _ALLOW_TF32)
        lines["huggingface"] = ("TrainingArguments(tf32=True)",)
    # FP8 has no lines for frameworks: they choose other layers, or another library.
    if command and precision != "fp32":
        lines["amptui"] = (command,)
    return lines


def _pytorch(
    precision: str, device: str, clip_norm: float | None, compiled: tuple[str, ...]
) -> tuple[str, ...]:
    """A training loop as in PyTorch's documentation."""
    scales = precision == "fp16"
    lines = [*(_FLOAT8 if precision == "fp8" else ()), *compiled]
    lines += [f'scaler = torch.amp.GradScaler("{device}")'] * scales
    lines += [
        "for inputs, targets in batches:",
        "    optimizer.zero_grad()",
        f'    with torch.autocast("{device}", dtype=torch.{_DTYPES[precision]}):',
        "        loss = loss_function(model(inputs), targets)",
        "    scaler.scale(loss).backward()" if scales else "    loss.backward()",
    ]
    if clip_norm is not None:
        lines += ["    scaler.unscale_(optimizer)"] * scales
        lines.append(f"    torch.nn.utils.clip_grad_norm_(model.parameters(), {clip_norm:g})")
    lines += ["    scaler.step(optimizer)", "    scaler.update()"] if scales else ["    optimizer.step()"]
    return tuple(lines)
