"""What follows the precision of a script that runs: its autocast, its scaler, its float8 layers."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler

from amptui.recipe.float8 import Float8Linears, float8_linears
from amptui.recipe.precision import Precision, build_precisions
from amptui.records.run import FP8_PRECISIONS

AUTOCAST_DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    **dict.fromkeys(FP8_PRECISIONS, torch.bfloat16),
}


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
    """The autocast, the scaler and the float8 layers of a loop whose precision changes between two steps.

    ``like`` is a scaler whose scale and settings the loop's own scaler starts with. Raises ValueError if that
    one is disabled. ``fp8_recipe`` is torchao's name of how float8 factors are scaled.
    """

    def __init__(
        self, device: torch.device, like: GradScaler | None = None, *, fp8_recipe: str | None = None
    ) -> None:
        self.device = device
        self._fp8_recipe = fp8_recipe
        self.scaler = SwitchedScaler(device.type)
        if like is not None:
            if not like.is_enabled():
                raise ValueError("the scaler is disabled; leave it out: amptui scales the loss in fp16 only")
            self.scaler.load_state_dict(like.state_dict())
        self.precisions = build_precisions(device, self.scaler)
        self._autocasts: dict[tuple[str, bool], torch.autocast] = {}
        """Of each precision, with and without a cache; never entered: an entered one is not reentrant."""
        self.linears: Float8Linears | None = None
        """The layers that can multiply in float8, if there are any."""
        self.follow(self.precisions["fp32"])

    def take_layers(self, models: Mapping[str, nn.Module], unsupported: Mapping[str, str]) -> dict[str, str]:
        """Let the Linear layers of ``models`` multiply in float8 in FP8.

        Returns ``unsupported`` with why they cannot, if so.
        """
        if self.linears is not None:
            self.linears.become(None)
        self.linears, unsupported = float8_linears(models, self._fp8_recipe, unsupported, sharded=False)
        for precision in self.precisions.values():
            precision.linears = self.linears
        return unsupported

    def begin(self, precision: str) -> str:
        """Run the script's first steps in ``precision``; return why that cannot be, if so."""
        why = self.precisions[precision].reason_not_to_enter()
        if not why:
            self.follow(self.precisions[precision])
            self.precision.enter()
        return why

    def without_float8(self, save: Callable[[], object]) -> object:
        """Call ``save``, to which the model has its own layers: a file of it needs no torchao to be read."""
        if self.linears is None:
            return save()
        with self.linears.kept():
            self.linears.become(None)
            return save()

    def leave_float8(self) -> None:
        """Give the script its own layers back; what it trains from here on in FP8 is in bfloat16."""
        if self.linears is not None:
            self.linears.become(None)
        if self.precision.float8 is not None:
            self.follow(self.precisions["bf16"])

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
        template = self._autocasts.get(key)
        if template is None:
            template = self._autocasts[key] = self._new_autocast(cache_enabled=cache_enabled)
        context = object.__new__(torch.autocast)
        context.__dict__.update(template.__dict__)
        if not template._enabled:
            context.fast_dtype = torch.get_autocast_dtype(context.device)  # which it leaves as it is
        return context

    def _new_autocast(self, *, cache_enabled: bool) -> torch.autocast:
        dtype = AUTOCAST_DTYPES.get(self.precision.name)
        return torch.autocast(
            self.device.type, dtype=dtype, enabled=dtype is not None, cache_enabled=cache_enabled
        )
