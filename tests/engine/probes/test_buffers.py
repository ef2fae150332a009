"""NaN and Inf in buffers: found once, worst first, and never where a model means them."""

import math
from collections.abc import Mapping

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from amptui.engine.probes.buffers import BufferWatch
from amptui.engine.probes.gradients import MAX_NAMES
from amptui.engine.probes.module_trace import infinite_names
from amptui.records.run import NonFinite


def holding(buffers: Mapping[str, Tensor]) -> nn.Module:
    model = nn.Module()
    for name, tensor in buffers.items():
        model.register_buffer(name, tensor)
    return model


def watching(model: nn.Module) -> BufferWatch:
    return BufferWatch(model, infinite_names(model))


def look(watch: BufferWatch) -> NonFinite | None:
    return watch.record(watch.measure().tolist(), time=1.5, step=7)


def named(watch: BufferWatch) -> dict[str, str]:
    """The kind of each buffer that is told of now."""
    record = look(watch)
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


bad = st.sampled_from([math.nan, math.inf, -math.inf])


@given(st.integers(1, 14), st.data())
def test_all_are_counted_and_the_worst_are_named_first(number: int, data: st.DataObject) -> None:
    wrong = data.draw(st.dictionaries(st.integers(0, number - 1), bad))
    model = holding({f"b{i}": torch.ones(2, 3) for i in range(number)})
    watch = watching(model)
    for i, value in wrong.items():
        model.get_buffer(f"b{i}")[1, 2] = value
    record = look(watch)
    nans = [f"b{i}" for i in sorted(wrong) if math.isnan(wrong[i])]
    infs = [f"b{i}" for i in sorted(wrong) if math.isinf(wrong[i])]
    if not wrong:
        assert record is None
        return
    assert record is not None
    assert record.count == len(wrong)
    assert list(record.names) == (nans + infs)[:MAX_NAMES]
    assert list(record.kinds) == (["nan"] * len(nans) + ["inf"] * len(infs))[:MAX_NAMES]
    assert record.kind == ("nan" if nans else "inf")
