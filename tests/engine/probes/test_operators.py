"""Operators counted by what really ran."""

from typing import Any

import pytest
import torch
from torch import nn

from amptui.engine.probes.operators import OperatorCounter

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")


def counted(counter: OperatorCounter) -> dict[tuple[str, str], int]:
    return {(count.name, count.dtype): count.count for count in counter.counts()}


def test_forward_and_backward_count_in_the_dtype_that_autocast_chose() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    with OperatorCounter() as counter:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(torch.rand(3, 1, 4, 4)), torch.tensor([0, 1, 0]))
        loss.backward()
    counts = counted(counter)
    assert counts["convolution", "bfloat16"] == 1
    assert counts["convolution_backward", "bfloat16"] == 1
    assert counts["addmm", "bfloat16"] == 1
    assert counts["mm", "bfloat16"] == 2
    assert counts["_log_softmax", "float32"] == 1
    assert counts["nll_loss_backward", "float32"] == 1
    assert not {"convolution", "addmm", "mm"} & {name for name, dtype in counts if dtype == "float32"}


def test_counts_come_most_frequent_first() -> None:
    with OperatorCounter() as counter:
        torch.ones(2).exp().sin().sin().sin().exp()
    assert [(count.name, count.count) for count in counter.counts()] == [("sin", 3), ("exp", 2), ("ones", 1)]


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
    assert counted(counter) == expected


def test_operators_of_other_libraries_have_their_namespace() -> None:
    with torch.library._scoped_library("amptui_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")
        with OperatorCounter() as counter:
            torch.ops.amptui_test.twice(HALF)
    assert counted(counter)["amptui_test.twice", "float16"] == 1


@pytest.mark.gpu
@gpu
def test_a_gpu_s_backward_pass_is_counted() -> None:
    weight = torch.rand(8, 8, device="cuda", requires_grad=True)
    with OperatorCounter() as counter:
        with torch.autocast("cuda", dtype=torch.float16):
            product = torch.rand(8, 8, device="cuda") @ weight
        product.float().sum().backward()
    assert counted(counter)["mm", "float16"] == 2
