"""Operators are counted by the dtype that they compute in."""

from typing import Any

import pytest
import torch

from amptui.probes.operators import OperatorCounter

HALF = torch.ones(2, 2, dtype=torch.float16)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (HALF.float, {("_to_copy", "float32"): 1}),
        (lambda: torch.zeros(2, dtype=torch.float64), {("zeros", "float64"): 1}),
        (lambda: HALF.sum(dtype=torch.float32), {("sum", "float32"): 1}),
        (lambda: HALF + torch.ones(2, 2), {("ones", "float32"): 1, ("add", "float32"): 1}),
        (lambda: torch.cat([HALF, HALF]), {("cat", "float16"): 1}),
        (lambda: torch._foreach_abs([HALF, HALF]), {("_foreach_abs", "float16"): 1}),
        (lambda: HALF.clone().relu_(), {("clone", "float16"): 1, ("relu_", "float16"): 1}),
        (lambda: HALF.view(4).unsqueeze(0).t().expand(4, 2).detach(), {}),
    ],
    ids=lambda value: "" if callable(value) else str(sorted(value)),
)
def test_an_operator_s_dtype_is_what_it_computes_in(run: Any, expected: dict[tuple[str, str], int]) -> None:
    with OperatorCounter() as counter:
        run()
    assert {(count.name, count.dtype): count.count for count in counter.counts()} == expected
