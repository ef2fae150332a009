"""The Linear layers that multiply in float8; apart from the rest because they need torchao."""

from dataclasses import fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torchao.float8 import Float8LinearConfig, float8_linear
from torchao.float8.config import CastConfig

_OCP_FORMATS = {
    torch.float8_e4m3fnuz: torch.float8_e4m3fn,
    torch.float8_e5m2fnuz: torch.float8_e5m2,
}
"""The formats of AMD's MI300, and those of all other hardware (OCP 8-bit Floating Point Specification)."""


def with_ocp_formats(config: Float8LinearConfig) -> Float8LinearConfig:
    """The same recipe in OCP's formats: on an MI300 torchao chooses AMD's older ones."""
    casts = {field.name: getattr(config, field.name) for field in fields(config)}
    return replace(
        config,
        **{
            name: replace(cast, target_dtype=_OCP_FORMATS.get(cast.target_dtype, cast.target_dtype))
            for name, cast in casts.items()
            if isinstance(cast, CastConfig)
        },
    )


class Float8Linear(float8_linear.Float8Linear):
    """torchao's layer, for as long as the run is in FP8, and for batches without rows, too."""

    added: ClassVar[frozenset[str]] = frozenset()
    """The attributes of its instances that a plain Linear layer does not have."""

    def takes(self, input: Tensor) -> bool:  # noqa: A002 - as nn.Linear calls it
        """Whether a call with ``input`` multiplies in float8."""
        return bool(input.numel())

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as nn.Linear calls it
        if not input.numel():  # an expert's without a token, say: there is no largest value to scale by
            return nn.Linear.forward(self, input)
        output: Tensor = super().forward(input)
        return output

    def __reduce_ex__(self, _protocol: object) -> tuple[Any, ...]:
        """What is copied or saved whole is a plain Linear layer: nothing would lead it out of FP8 again."""
        plain = {name: value for name, value in vars(self).items() if name not in self.added}
        return object.__new__, (nn.Linear,), plain


class EmulatedFloat8Linear(Float8Linear):
    """The same, as it computes on a GPU, wherever autocast runs.

    On a CPU torchao leaves the input in float32. Autocast would also round the emulated product's factors,
    already in float8's numbers, to bfloat16, which the hardware does not.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as nn.Linear calls it
        if not input.numel():
            return nn.Linear.forward(self, input)
        device_type = input.device.type
        autocasts = torch.is_autocast_enabled(device_type)
        rounded = input.to(torch.get_autocast_dtype(device_type)) if autocasts else input
        with torch.autocast(device_type, enabled=False):
            return super().forward(rounded)
