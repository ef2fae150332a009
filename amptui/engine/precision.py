"""One class a precision: how a step computes its loss, goes backward and changes the weights in it.

Precisions change only between two optimizer steps. One GradScaler lives for the whole run and only
``fp16`` touches it: run through other steps it would grow without limit, disabled it would forget.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from amptui.errors import UsageError
from amptui.records import PRECISIONS

LOWEST_SOUND_SCALE = 1.0
"""Below it the loss scale makes gradients smaller, the opposite of its purpose."""


@dataclass(frozen=True, slots=True)
class Tf32Flags:
    """Whether float32 matrix products and convolutions may use TF32's 10-bit mantissa.

    Only the older pair of flags is read and written: mixing it with ``fp32_precision`` makes torch raise.
    """

    matmul: bool
    convolution: bool

    @classmethod
    def current(cls) -> "Tf32Flags":
        """What is set now."""
        return cls(torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)

    def apply(self) -> None:
        """Set both flags."""
        torch.backends.cuda.matmul.allow_tf32 = self.matmul
        torch.backends.cudnn.allow_tf32 = self.convolution


@dataclass(frozen=True, slots=True)
class ScalerTensors:
    """The scaler around one step, as device tensors: reading them on the host is the readback's business.

    The last two are the scaler's own and change in place with the next step: copy them before it.
    """

    scale: Tensor
    """What this step's loss was multiplied by."""
    found_inf: Tensor
    """1.0 if this step was skipped."""
    next_scale: Tensor
    growth_tracker: Tensor
    """Applied steps since the scale last moved, this one counted."""


class PrecisionMode:
    """``fp32``: PyTorch as it comes. The base of all modes; each differs by a few overridden methods."""

    name = "fp32"
    scales = False
    """Whether gradients are multiplied by the loss scale, and steps may be skipped."""

    def __init__(self, *, device: torch.device, scaler: GradScaler, default_flags: Tf32Flags) -> None:
        self.device = device
        self.scaler = scaler
        self.default_flags = default_flags
        self._first_scale = scaler.get_scale()

    @property
    def scale(self) -> Tensor | None:
        """The loss scale on the device, after the first backward pass of a mode that has one; else None."""
        return None

    def enter(self) -> None:
        """Make the process ready for this mode's steps."""
        self.default_flags.apply()

    def forward_context(self) -> AbstractContextManager[object]:
        """What the forward pass and the loss run in."""
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Fill the gradients."""
        loss.backward()

    def unscale(self, optimizer: Optimizer) -> None:
        """Bring the gradients to their true size, so that they may be clipped."""

    def hold_scale(self, least: float | None) -> None:
        """Let the loss scale, if there is one, fall to ``least`` and no further; None takes that back."""

    def restart_collapsed_scale(self) -> None:
        """Begin the search for the loss scale anew if it had fallen to where no gradient survives."""

    def step(self, optimizer: Optimizer) -> ScalerTensors | None:
        """Change the weights, unless the scaler skips the step; its state as of this step, if it has one."""
        optimizer.step()
        return None


class IeeeMode(PrecisionMode):
    """``ieee``: float32 with TF32 off everywhere."""

    name = "ieee"

    def enter(self) -> None:
        Tf32Flags(matmul=False, convolution=False).apply()


class Tf32Mode(PrecisionMode):
    """``tf32``: float32 with TF32 on everywhere."""

    name = "tf32"

    def enter(self) -> None:
        Tf32Flags(matmul=True, convolution=True).apply()


class Bf16Mode(PrecisionMode):
    """``bf16``: autocast to bfloat16, whose range is float32's, so nothing is scaled."""

    name = "bf16"
    dtype = torch.bfloat16

    def forward_context(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, dtype=self.dtype)


class Fp16Mode(Bf16Mode):
    """``fp16``: autocast to float16, and the run's one GradScaler."""

    name = "fp16"
    scales = True
    dtype = torch.float16
    _least_scale: float | None = None

    @property
    def scale(self) -> Tensor | None:
        return _scale(self.scaler)

    def backward(self, loss: Tensor) -> None:
        # Scaling outside autocast keeps the product in float32: 2^16 does not exist in float16.
        self.scaler.scale(loss.float()).backward()

    def unscale(self, optimizer: Optimizer) -> None:
        self.scaler.unscale_(optimizer)

    def hold_scale(self, least: float | None) -> None:
        self._least_scale = least

    def restart_collapsed_scale(self) -> None:
        scale = self.scaler._scale
        if scale is not None:
            first = torch.full_like(scale, self._first_scale)
            scale.copy_(torch.where(scale < LOWEST_SOUND_SCALE, first, scale))

    def step(self, optimizer: Optimizer) -> ScalerTensors | None:
        self.scaler.step(optimizer)
        # update() writes the scale in place and forgets found_inf, so both are taken before.
        scale, found_inf = _scale(self.scaler).clone(), _found_inf(self.scaler, optimizer)
        self.scaler.update()
        if self._least_scale is not None:
            _scale(self.scaler).clamp_(min=self._least_scale)
        return ScalerTensors(scale, found_inf, _scale(self.scaler), _growth_tracker(self.scaler))


_MODES: tuple[type[PrecisionMode], ...] = (PrecisionMode, IeeeMode, Tf32Mode, Fp16Mode, Bf16Mode)


def build_modes(device: torch.device, scaler: GradScaler) -> dict[str, PrecisionMode]:
    """Every mode by name, sharing one scaler; call before any mode was entered."""
    flags = Tf32Flags.current()
    return {mode.name: mode(device=device, scaler=scaler, default_flags=flags) for mode in _MODES}


def unsupported_precisions(device: torch.device) -> dict[str, str]:
    """The precisions ``device`` cannot run, each with the reason in a few words."""
    if device.type != "cuda":
        return {"tf32": "TF32 is a format of NVIDIA GPUs"}
    if torch.cuda.get_device_capability(device) >= (8, 0):
        return {}
    name = torch.cuda.get_device_name(device)
    return {
        "tf32": f"{name} has no TF32; compute capability 8.0 or newer has",
        "bf16": f"{name} has no bfloat16 arithmetic; compute capability 8.0 or newer has",
    }


def check_supported(precision: str, unsupported: Mapping[str, str]) -> None:
    """Raise UsageError where the device cannot run ``precision``."""
    if precision in unsupported:
        others = ", ".join(name for name in PRECISIONS if name not in unsupported)
        raise UsageError(f"precision {precision}: {unsupported[precision]}", mend=f"use one of {others}")


def _scale(scaler: GradScaler) -> Tensor:
    """The scale as a tensor on its device; ``get_scale()`` would make the host wait for it."""
    scale = scaler._scale
    assert scale is not None, "scale() runs before the scale is asked for"
    return scale


def _growth_tracker(scaler: GradScaler) -> Tensor:
    tracker = scaler._growth_tracker
    assert tracker is not None, "scale() runs before the tracker is asked for"
    return tracker


def _found_inf(scaler: GradScaler, optimizer: Optimizer) -> Tensor:
    """1.0 where the optimizer's gradients held a non-finite value at this step."""
    found = list(scaler._found_inf_per_device(optimizer).values())
    return found[0] if len(found) == 1 else torch.stack([f.to(found[0].device) for f in found]).amax()
