"""What a usual step sends to the device beyond a plain loop's."""

import pytest

from tests.simcuda.training import run, run_plain

MAX_ADDED = {"fp32": 2, "bf16": 2, "fp16": 5}


@pytest.mark.parametrize("probes", [True, pytest.param(False, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("clip_norm", [None, 1.0], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_few_operators_are_added(precision: str, clip_norm: float | None, probes: bool) -> None:
    plain = run_plain(precision=precision, clip_norm=clip_norm).usual()
    ours = run(precision=precision, clip_norm=clip_norm, probes=probes, steps=50).marks.usual()
    assert ours.total() - plain.total() <= MAX_ADDED[precision], (ours - plain, plain - ours)
