"""NaN and Inf in buffers: found once, worst first, and never where a model means them."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from amptui.engine.probes.buffers import BufferWatch
from amptui.engine.probes.module_trace import infinite_names


def holding(buffers: Mapping[str, Tensor]) -> nn.Module:
    model = nn.Module()
    for name, tensor in buffers.items():
        model.register_buffer(name, tensor)
    return model


def watching(model: nn.Module) -> BufferWatch:
    return BufferWatch(model, infinite_names(model))


def named(watch: BufferWatch) -> dict[str, str]:
    """The kind of each buffer that is told of now."""
    record = watch.record(watch.measure().tolist(), time=1.5, step=7)
    return {} if record is None else dict(zip(record.names, record.kinds, strict=True))


def test_inf_in_a_mask_is_ignored_but_nan_is_not() -> None:
    mask = torch.full((4, 4), -math.inf).triu(1)
    watch = watching(holding({"mask": mask, "running_mean": torch.zeros(4)}))
    assert named(watch) == {}
    mask[0, 0] = math.inf
    assert named(watch) == {}
    mask[0, 0] = math.nan
    assert named(watch) == {"mask": "nan"}
    # NaN that was there from the start, as from a checkpoint, is told.
    assert named(watching(holding({"running_mean": torch.tensor([0.0, math.nan])}))) == {
        "running_mean": "nan"
    }
