"""Each precision: how a step computes the loss, runs backward and updates the weights.

Precisions change only between two optimizer steps. One GradScaler lives for the whole run and only
``fp16`` touches it: run through other steps it would grow without limit, disabled it would forget.
"""

import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from amptui.base.errors import UsageError
from amptui.device.accelerator import capabilities, properties
from amptui.recipe.float8 import Float8Linears, why_no_float8
from amptui.records.run import AMP_PRECISIONS, MIN_SOUND_SCALE, PRECISIONS

_ON_GPUS = ("cuda.matmul", "cudnn.conv", "cudnn.rnn")

_ON_CPUS = ("mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")


@dataclass(frozen=True, slots=True)
class Tf32Flags:
    """What float32 matrix products, convolutions and RNNs may round to, such as TF32's 10-bit mantissa.

    torch has two sets of these flags. Reading the older one (``allow_tf32``,
    ``set_float32_matmul_precision``) raises if it disagrees with the newer one (``fp32_precision``). A model
    file may set either. This reads only the newer one, which torch uses, and writes both, so that they
    agree. See https://docs.pytorch.org/docs/stable/notes/cuda.html, "TensorFloat-32".
    """

    words: tuple[str, ...]
    """``fp32_precision`` of ``_ON_GPUS``, then of ``_ON_CPUS``: ``ieee``, ``tf32``, ``bf16``, or ``none`` for
    the default, full float32."""

    @classmethod
    def current(cls) -> "Tf32Flags":
        """The current settings; a default for all of them shows in each."""
        return cls(tuple(_setting(place).fp32_precision for place in (*_ON_GPUS, *_ON_CPUS)))

    @classmethod
    def full(cls) -> "Tf32Flags":
        """No rounding anywhere."""
        return cls(("ieee",) * len((*_ON_GPUS, *_ON_CPUS)))

    def with_tf32(self) -> "Tf32Flags":
        """TF32 everywhere on GPUs; CPUs unchanged."""
        return Tf32Flags((*("tf32" for _ in _ON_GPUS), *self.words[len(_ON_GPUS) :]))

    def apply(self) -> None:
        """Set all of them, in both of torch's sets."""
        words = dict(zip((*_ON_GPUS, *_ON_CPUS), self.words, strict=True))
        level = "medium" if words["mkldnn.matmul"] == "bf16" else "high"
        with warnings.catch_warnings():
            # torch 2.9 warns at the first use of the older set.
            warnings.filterwarnings("ignore", "Please use the new API settings")
            torch.set_float32_matmul_precision(level if words["cuda.matmul"] == "tf32" else "highest")
            torch.backends.cudnn.allow_tf32 = words["cudnn.conv"] == "tf32"
        # The older setters also changed the newer flags, several at once.
        for place, word in words.items():
            setting = _setting(place)
            if setting.fp32_precision != word:
                setting.fp32_precision = word


def _setting(place: str) -> Any:
    """The object with ``fp32_precision``, which torch's type stubs lack."""
    backend, operator = place.split(".")
    return getattr(getattr(torch.backends, backend), operator)


class ScalerTensors(NamedTuple):
    """The scaler's state around one step, as tensors on the device; the readback brings them to the host.

    The last two are the scaler's own tensors, which the next step changes in place: copy them before.
    """

    scale: Tensor
    """What this step's loss was multiplied by."""
    found_inf: Tensor
    """1.0 if this step was skipped."""
    next_scale: Tensor
    growth_tracker: Tensor
    """Applied steps since the scale last changed, including this one."""


class Precision:
    """How a step computes: flags for float32, maybe autocast to ``dtype``, maybe float8 layers."""

    scales = False
    """Whether gradients are multiplied by the loss scale, and steps may be skipped."""
    linears: Float8Linears | None = None
    """The Linear layers that can; None where only the script knows its model."""
    replays_graphs = False
    """Whether the model runs in CUDA graphs, of whose memory torch's allocator learns only at recording."""

    def __init__(
        self,
        name: str,
        flags: Tf32Flags,
        *,
        device: torch.device,
        scaler: GradScaler,
        dtype: torch.dtype | None = None,
        float8: bool = False,
    ) -> None:
        self.name = name
        self.scaler = scaler
        self.float8 = float8
        """Whether Linear layers multiply in float8."""
        self.first_scale = scaler.get_scale()
        """The loss scale that a run starts with."""
        self._flags = flags
        self.forward_context: AbstractContextManager[object] = nullcontext()
        """The context for the forward pass and the loss; not reentrant. A compiled model has another one."""
        if dtype is not None:
            self.forward_context = torch.autocast(device.type, dtype=dtype)  # once: it queries CUDA

    @property
    def scale(self) -> Tensor | None:
        """The loss scale on the device, after the first backward pass with one; else None."""
        return None

    @property
    def growth_interval(self) -> int | None:
        """Applied steps until the loss scale doubles; None if there is none."""
        return None

    def reason_not_to_enter(self) -> str:
        """Why this precision cannot be entered after all; empty if it can. Call it before the first time."""
        return self.linears.prepare() if self.linears is not None and self.float8 else ""

    def enter(self) -> None:
        """Set the process's flags, and what Linear layers do, for steps in this precision."""
        if self.linears is not None:
            self.linears.become(on=self.float8)
        self._flags.apply()

    def backward(self, loss: Tensor) -> None:
        """Fill the gradients."""
        loss.backward()

    def unscale(self, optimizer: Optimizer) -> None:
        """Unscale the gradients, so that they can be clipped."""

    def hold_scale(self, least: float | None) -> None:
        """Keep the loss scale, if there is one, at ``least`` or above; None removes the limit."""

    def restart_collapsed_scale(self) -> None:
        """Restart the search for the loss scale if it is so low that gradients underflow."""

    def step(self, optimizer: Optimizer) -> ScalerTensors | None:
        """Change the weights unless the scaler skips the step; return the scaler's state, if any."""
        optimizer.step()
        return None

    def abandon_step(self) -> None:
        """Clean up after a step that failed."""


class Fp16(Precision):
    """Autocast to float16, and the run's one GradScaler."""

    scales = True
    _min_scale: float | None = None

    @property
    def scale(self) -> Tensor | None:
        return current_scale(self.scaler)

    @property
    def growth_interval(self) -> int | None:
        return self.scaler.get_growth_interval()

    def backward(self, loss: Tensor) -> None:
        # Scaling outside autocast keeps the product in float32: 2^16 does not exist in float16.
        self.scaler.scale(loss.float()).backward()

    def unscale(self, optimizer: Optimizer) -> None:
        self.scaler.unscale_(optimizer)

    def hold_scale(self, least: float | None) -> None:
        self._min_scale = least

    def restart_collapsed_scale(self) -> None:
        scale = self.scaler._scale
        if scale is not None:
            first = torch.full_like(scale, self.first_scale)
            scale.copy_(torch.where(scale < MIN_SOUND_SCALE, first, scale))

    def step(self, optimizer: Optimizer) -> ScalerTensors | None:
        # update() changes the scale in place and drops found_inf: both are read before. Nothing is allocated
        # after the weights have changed: a failed attempt can be undone until then.
        scale = current_scale(self.scaler).clone()
        self.scaler.step(optimizer)
        overflow = found_inf(self.scaler, optimizer)
        self.scaler.update()
        if self._min_scale is not None:
            current_scale(self.scaler).clamp_(min=self._min_scale)
        return ScalerTensors(scale, overflow, current_scale(self.scaler), growth_tracker(self.scaler))

    def abandon_step(self) -> None:
        # Until update() it records which optimizers it has unscaled, and would not unscale their next step.
        self.scaler._per_optimizer_states.clear()


def build_precisions(device: torch.device, scaler: GradScaler) -> dict[str, Precision]:
    """Every precision by name, sharing one scaler; call before entering any of them.

    bfloat16 has the range of float32 and needs no loss scale. In FP8 Linear layers multiply in float8.
    """
    flags = Tf32Flags.current()
    flags.apply()
    make, half = partial(Precision, device=device, scaler=scaler), torch.bfloat16
    precisions = (
        make("fp32", flags),
        make("ieee", Tf32Flags.full()),
        make("tf32", flags.with_tf32()),
        Fp16("fp16", flags, device=device, scaler=scaler, dtype=torch.float16),
        make("bf16", flags, dtype=half),
        make("fp8", flags, dtype=half, float8=True),
    )
    return {precision.name: precision for precision in precisions}


def amp_of(device: torch.device, first: str = "", chosen: str | None = None, usual: str | None = None) -> str:
    """AMP of a run on ``device``: ``first``, in which it starts, if that is AMP, or what is chosen or usual.

    Raises ValueError if another than ``first`` is ``chosen``.
    """
    if first in AMP_PRECISIONS and chosen not in (None, first):
        raise ValueError(f"AMP is to be {chosen}, but the run starts in {first}")
    return first if first in AMP_PRECISIONS else chosen or usual or capabilities(device).amp


def unsupported_precisions(device: torch.device) -> dict[str, str]:
    """The precisions that ``device`` does not support, each with a short reason."""
    unsupported = why_no_float8(device)
    if not capabilities(device).tf32:
        return {"tf32": "TF32 needs an NVIDIA GPU", **unsupported}
    facts = properties(device)
    if facts.compute_capability is None or facts.compute_capability >= (8, 0):
        return unsupported
    name = facts.name
    return {
        **unsupported,
        "tf32": f"{name} does not support TF32, which needs compute capability 8.0",
        "bf16": f"{name} does not support bfloat16, which needs compute capability 8.0",
    }


def check_supported(precision: str, unsupported: Mapping[str, str], *, resumes: bool = False) -> None:
    """Raise UsageError if the device does not support ``precision``; a run that ``resumes`` has no other."""
    if precision in unsupported:
        others = ", ".join(name for name in PRECISIONS if name not in unsupported)
        hint = "resume the run where that is supported" if resumes else f"use one of {others}"
        raise UsageError(f"precision {precision}: {unsupported[precision]}", hint=hint)


def check_enterable(precision: Precision, unsupported: Mapping[str, str]) -> None:
    """Raise UsageError if the model cannot be trained in ``precision``, now that it is built."""
    check_supported(precision.name, unsupported)
    if why := precision.reason_not_to_enter():
        raise UsageError(f"precision {precision.name}: {why}", hint="use --precision bf16")


def current_scale(scaler: GradScaler) -> Tensor:
    """The scale as a tensor on its device; ``get_scale()`` would make the host wait for it."""
    scale = scaler._scale
    assert scale is not None, "scale() creates it"
    return scale


def growth_tracker(scaler: GradScaler) -> Tensor:
    """Applied steps since the scale last moved, on the scale's device."""
    tracker = scaler._growth_tracker
    assert tracker is not None, "scale() creates it"
    return tracker


def found_inf(scaler: GradScaler, optimizer: Optimizer) -> Tensor:
    """1.0 if a gradient of this step is not finite, else 0.0: so, too, if there are no gradients."""
    flags = list(scaler._found_inf_per_device(optimizer).values())
    if not flags:
        return torch.zeros_like(current_scale(scaler))
    return flags[0] if len(flags) == 1 else torch.stack([flag.to(flags[0].device) for flag in flags]).amax()
