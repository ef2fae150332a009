"""Makes the recommendation of what was measured, with the command and the lines that follow from it."""

import shlex
from pathlib import Path

from amptui.base.errors import UsageError
from amptui.base.masking import masked
from amptui.recipe.request import AdviseRequest
from amptui.records.run import AMP_PRECISIONS
from amptui.reports.advise.advice import recommend
from amptui.reports.advise.advice_report import Recommendation
from amptui.reports.advise.evidence import Evidence, candidates, compiling, has_other_weights
from amptui.reports.advise.loss_race import LossRace
from amptui.reports.advise.paste import Setting, lines_for
from amptui.reports.advise.stages import BASELINE
from amptui.runs.rundir import default_data_dir

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


def recommendation(
    request: AdviseRequest,
    evidence: Evidence,
    precisions: tuple[str, ...],
    race: LossRace | None,
    *,
    seconds: float,
) -> Recommendation:
    """What follows from the evidence."""
    options = tuple(candidates(evidence, precisions, race))
    advice = recommend(
        options,
        other_weights=has_other_weights(evidence.view),
        compiling=compiling(evidence.view.compared, BASELINE),
    )
    run = evidence.view.run
    lines = {}
    if advice.precision is not None and run is not None:
        setting = Setting(
            precision=advice.precision,
            device_type=run.device.partition(":")[0],
            command=""
            if request.script
            else train_command(request, advice.precision, compiles=advice.compiles),
            clip_norm=request.training.clip_norm,
            compiles=advice.compiles,
        )
        lines = dict(lines_for(setting))
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


def train_command(request: AdviseRequest, precision: str, *, compiles: bool) -> str:
    """The command line that trains the same model in ``precision``, with all its options."""
    training = request.training
    values: dict[str, object] = {
        "--precision": precision,
        "--amp-dtype": precision if precision in AMP_PRECISIONS else "",
        "--batch-size": training.batch_size,
        "--accumulate": training.accumulate if training.accumulate > 1 else None,
        "--lr": training.learning_rate,
        "--clip-norm": training.clip_norm,
        "--seed": training.seed or None,
        "--device": "" if training.device == "auto" else training.device,
        "--data": "" if training.data == "auto" else training.data,
        "--workers": training.workers,
        "--data-dir": "" if training.data_dir in (Path(), default_data_dir()) else training.data_dir,
    }
    words = ["amptui", "train", training.model]
    for name, value in values.items():
        words += [name, str(value)] if value not in (None, "") else []
    for name, text in training.settings.items():
        words += ["--set", masked(f"{name}={text}")]  # it stands on a page, too
    words += ["--channels-last"] * training.channels_last + ["--cudnn-benchmark"] * training.cudnn_benchmark
    words += ["--compile", training.compile_mode] if compiles and training.compile_mode else []
    return shlex.join(words)
