"""The labels and letters of the precisions, the glossary, and what data, loss and ranks are."""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from amptui.base import units
from amptui.records.own_loop import LossForm
from amptui.records.run import AMP_PRECISIONS, DataInfo, RunStarted
from amptui.records.samples import GpuSample
from amptui.records.steps import Steps
from amptui.telemetry.rank_watch import RankSummary
from amptui.telemetry.view import SessionView

_SIGNS: Mapping[str, tuple[str, str]] = {
    "fp32": ("F", "FP32"),
    "ieee": ("I", "FP32 (TF32 off)"),
    "tf32": ("T", "TF32"),
    "fp16": ("H", "AMP fp16"),  # H and D as in half and double precision
    "bf16": ("B", "AMP bf16"),
    "fp8": ("8", "FP8"),
    "fp16 weights": ("h", "fp16 weights"),
    "bf16 weights": ("b", "bf16 weights"),
    "float8 layers": ("L", "float8 layers"),
    "float64": ("D", "float64"),
    "mixed": ("M", "mixed precisions"),
    "unknown": ("?", "precision unknown"),
}
"""Letter and label."""


def precision_label(name: str) -> str:
    """``AMP fp16`` for ``fp16``; other names are labels."""
    return _SIGNS.get(name, ("?", name))[1]


def short_label(name: str) -> str:
    """``fp16`` for ``fp16``, ``FP8`` for ``fp8``: beside others, without AMP."""
    return precision_label(name).removeprefix("AMP ")


def family_label(name: str | None) -> str:
    """``AMP`` for its precisions, and where none is named; for others their label."""
    return "AMP" if not name or name in AMP_PRECISIONS else precision_label(name)


def layer_label(name: str) -> str:
    """``mlp.fc``; ``layer 0`` for ``0``, as an ``nn.Sequential`` names it; ``the model`` without a name."""
    return f"layer {name}" if name.isdecimal() else name or "the model"


def precision_letter(name: str | None) -> str:
    """The one-cell letter for a precision, where there is no room for its label."""
    return _SIGNS.get(name or "", "?")[0]


def signed_label(name: str) -> str:
    """``H AMP fp16``, which explains its letter; in short, for a column, ``M mixed`` and ``? unknown``."""
    label = name if name in ("mixed", "unknown") else precision_label(name)
    return f"{precision_letter(name)} {label}"


GLOSSARY: Mapping[str, str] = {
    "AMP": "automatic mixed precision: torch.autocast to fp16 or bf16",
    "fp16": "float16: ends at 65,504, so GradScaler scales the loss",
    "bf16": "bfloat16: FP32's range with fewer digits, no GradScaler",
    "loss scale": "GradScaler's factor: small gradients survive fp16",
    "overflow": "a value above 65,504 becomes Inf in fp16",
    "headroom": "how far the largest scaled gradient is below overflow",
    "skipped step": "GradScaler found Inf or NaN and left the weights alone",
    "underflow": "gradients too small for fp16: zero, or few digits left",
    "gradients agree": "cosine to FP32's gradient at least 0.9 in each layer",
    "warm-up steps": "those after a start or switch, left out of step times",
    "interval": "holds the true speed-up with 95% confidence",
    "compute-bound": "arithmetic takes most of the step: AMP can help",
    "input-bound": "steps wait for data: speed up data loading first",
    "launch-bound": "the GPU waits for kernel launches: try torch.compile",
}
"""Words of the screen that not everybody has met, in one line each."""


def throttled_words(gpu: GpuSample, width: int) -> str:
    """Why the GPU is throttled: all reasons or, if too wide, the worst one; "" if it is not."""
    reasons = gpu.clocks_event_reasons or ()
    everything = f"⚠ throttled: {', '.join(reasons)}" if reasons else ""
    if len(reasons) < 2 or len(everything) <= width:
        return everything
    return f"⚠ throttled: {reasons[0]} +{len(reasons) - 1}"


MEMORY_KINDS: Mapping[str, str] = {
    "activations": "saved for the backward pass, with the weights that autocast casts, and temporary "
    "tensors: a lower bound, as not all gradients exist at the peak",
    "other": "the rest of the peak: data kept on the device, the batch and workspaces",
}
"""What those kinds are whose name does not say it."""

SYNTHETIC = "synthetic data"


def run_label(view: SessionView) -> str:
    """The model; before that is known the run's folder, without the time that its name may end with."""
    if view.run is not None:
        return view.run.model
    return re.sub(r"-\d{8}-\d{6}(-\d+)?$", "", view.folder_name) or "run"


def data_label(data: DataInfo) -> str:
    """``MNIST``, ``synthetic images``, or ``digits (synthetic data)``."""
    return data.name if data.real or data.name.startswith("synthetic") else f"{data.name} ({SYNTHETIC})"


def optimizers_left_out(view: SessionView) -> list[str]:
    """``more than 8 optimizers: the others are left out``, of a run that has so many."""
    more = f"more than {len(view.optimizers)} optimizers: the others are left out"
    return [more] if view.optimizers_left_out else []


# ------------------------------------------------------------------------------- the loss of a step

_LOSS_FORMS: Mapping[LossForm, str] = {
    "": "",
    "first closure": "first of several closures",
    "no backward": "no loss: gradients without backward()",
    "unattributed": "no loss: unclear whose backward() it was",
    "edited": "no loss: gradients changed between two passes",
    "several values": "no loss: backward() of several values",
    "scaled": "no loss: scaled by the script",
}


def loss_form_words(form: LossForm, passes: int, *, brief: bool = False) -> str:
    """``sum of 4 backward passes``, or ``no loss: ...``; empty for the loss of one pass.

    ``passes``: the micro-batches of the step. ``brief``: ``sum of 4 passes``.
    """
    if form == "sum":
        return f"sum of {units.count(passes)} {'' if brief else 'backward '}passes"
    return _LOSS_FORMS[form]


def step_loss_words(step: Steps | None, *, brief: bool = False) -> str:
    """The same for the row of a step; empty without one."""
    return "" if step is None else loss_form_words(step.loss_form, step.micro_batches, brief=brief)


def has_no_loss(step: Steps | None) -> bool:
    """Whether a measured step has no loss, for a reason."""
    return step is not None and step.loss[0] is None and bool(step.loss_form)


# ------------------------------------------------------------------------------------------ the ranks

_PARALLEL: Mapping[str, str] = {
    "ddp": "DDP",
    "fsdp": "FSDP",
    "fsdp2": "FSDP2",
    "hsdp": "HSDP",
    "tp": "TP",
}


def size_words(world_size: int, run: RunStarted | None) -> str:
    """``8 ranks, DDP``; ``8 ranks, FSDP2 + TP, data parallel 4`` where some ranks share their samples."""
    ranks, how = f"{units.count(world_size)} ranks", parallel_words("" if run is None else run.parallel)
    data = None if run is None else run.data_parallel
    shared = f"data parallel {units.count(data)}" if data not in (None, world_size) else ""
    return ", ".join(filter(None, (ranks, how, shared)))


def parallel_words(parallel: str) -> str:
    """``FSDP2 + TP`` for ``fsdp2+tp``; empty for a single process."""
    return " + ".join(_PARALLEL[name] for name in parallel.split("+") if name in _PARALLEL)


def batch_words(run: RunStarted | None) -> str:
    """``global batch 2,048``; empty where it is not known."""
    size = None if run is None else run.global_batch_size
    return "" if size is None else f"global batch {units.count(size)}"


def run_words(run: RunStarted) -> str:
    """``, 8 ranks, DDP, global batch 2,048``; empty for a single process."""
    if run.world_size <= 1:
        return ""
    batch = batch_words(run)
    return f", {size_words(run.world_size, run)}{f', {batch}' if batch else ''}"


class RankNumber(NamedTuple):
    """A column of each table of ranks: title and text, its cells on a screen, and which goes there first."""

    title: str
    text: Callable[[RankSummary], str]
    width: int
    priority: int


def _memory(row: RankSummary) -> str:
    used, total = row.memory_used_bytes, row.place.memory_total_bytes if row.place is not None else None
    return units.NOT_AVAILABLE if used is None else units.bytes_of(used, total)


RANK_NUMBERS = (
    RankNumber("data wait", lambda row: units.milliseconds(row.data_seconds), 9, 3),
    RankNumber("compute", lambda row: units.milliseconds(row.compute_seconds), 8, 2),
    RankNumber("step", lambda row: units.milliseconds(row.step_seconds), 8, 9),
    RankNumber("peak", lambda row: units.number_of_bytes(row.peak_allocated_bytes), 8, 7),
    RankNumber("GPU memory", _memory, 14, 6),
    RankNumber("grad norm", lambda row: units.loss(row.grad_norm), 9, 10),
    RankNumber("skipped", lambda row: units.count(row.skipped), 7, 8),
    RankNumber("own Inf", lambda row: units.count(row.overflowed), 7, 11),
    RankNumber("clock", lambda row: units.megahertz(row.sm_clock_mhz), 9, 5),
)
