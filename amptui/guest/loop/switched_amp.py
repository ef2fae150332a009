"""AMP that can be switched while a script runs: one autocast and one scaler that follow the precision."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler

from amptui.engine.precision import Precision, build_precisions

AUTOCAST_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class SwitchedScaler(GradScaler):
    """A GradScaler that passes losses and steps through while the precision has no loss scale.

    Its scale and its counter survive meanwhile, and :meth:`state_dict` always returns them.
    """

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._can_scale, self._scaling = self._enabled, True

    @property
    def scaling(self) -> bool:
        """Whether the precision has a loss scale."""
        return self._scaling

    @scaling.setter
    def scaling(self, scaling: bool) -> None:
        self._scaling = scaling
        # GradScaler asks for this attribute of its own in each of its methods, several times a step.
        self._enabled = self._can_scale and scaling

    def update(self, new_scale: Any = None) -> None:
        """As in ``GradScaler``; does nothing if the precision changed since the optimizer's step."""
        if new_scale is None and self._enabled and not self._per_optimizer_states:
            return
        super().update(new_scale)

    def state_dict(self) -> dict[str, Any]:
        with self._complete():
            return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        with self._complete():
            super().load_state_dict(state_dict)

    @contextmanager
    def _complete(self) -> Iterator[None]:
        """Within, it has its state in every precision."""
        before, self.scaling = self.scaling, True
        try:
            yield
        finally:
            self.scaling = before


class SwitchedAmp:
    """The autocast and the scaler of a loop whose precision changes between two steps.

    ``like`` is a scaler whose scale and settings the loop's own scaler starts with. Raises ValueError if that
    one is disabled.
    """

    def __init__(self, device: torch.device, like: GradScaler | None = None) -> None:
        self.device = device
        self.scaler = SwitchedScaler(device.type)
        if like is not None:
            if not like.is_enabled():
                raise ValueError("the scaler is disabled; leave it out: amptui scales the loss in fp16 only")
            self.scaler.load_state_dict(like.state_dict())
        self.precisions = build_precisions(device, self.scaler)
        self._autocasts: dict[tuple[str, bool], torch.autocast] = {}
        """Of each precision, with and without a cache; never entered: an entered one is not reentrant."""
        self.follow(self.precisions["fp32"])

    def follow(self, precision: Precision) -> None:
        """Run the steps from here on in ``precision``."""
        self.precision = precision
        self.scaler.scaling = precision.scales

    def autocast(self, *, cache_enabled: bool = True) -> torch.autocast:
        """The context for a forward pass and its loss, in the current precision.

        ``cache_enabled``: torch.autocast's; a weight that is used twice gets other gradient bits without it.
        """
        if torch.compiler.is_compiling():
            return self._new_autocast(cache_enabled=cache_enabled)
        # A copy: the constructor asks the device each time what it supports.
        key = self.precision.name, cache_enabled
        kept = self._autocasts.get(key)
        if kept is None:
            kept = self._autocasts[key] = self._new_autocast(cache_enabled=cache_enabled)
        context = object.__new__(torch.autocast)
        context.__dict__.update(kept.__dict__)
        if not kept._enabled:
            context.fast_dtype = torch.get_autocast_dtype(context.device)  # which it leaves as it is
        return context

    def _new_autocast(self, *, cache_enabled: bool) -> torch.autocast:
        dtype = AUTOCAST_DTYPES.get(self.precision.name)
        return torch.autocast(
            self.device.type, dtype=dtype, enabled=dtype is not None, cache_enabled=cache_enabled
        )
