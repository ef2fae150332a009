"""The Linear layer that emulates float8 products; apart from the rest because it needs torchao."""

import torch
from torch import Tensor
from torchao.float8 import float8_linear


class Float8Linear(float8_linear.Float8Linear):
    """torchao's layer, as it computes on a GPU, wherever autocast runs.

    On a CPU torchao leaves the input in float32. Autocast would also round the emulated product's factors,
    already in float8's numbers, to bfloat16, which the hardware does not.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as nn.Linear calls it
        device_type = input.device.type
        autocasts = torch.is_autocast_enabled(device_type)
        rounded = input.to(torch.get_autocast_dtype(device_type)) if autocasts else input
        with torch.autocast(device_type, enabled=False):
            output: Tensor = super().forward(rounded)
        return output
