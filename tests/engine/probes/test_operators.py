"""Operators counted by what really ran."""

import threading
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from amptui.engine.probes.operators import OperatorCounter, tensors_in

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
        (lambda: HALF > 0, {("gt", "float16"): 1}),
        (lambda: torch.cat([HALF, HALF]), {("cat", "float16"): 1}),
        (lambda: torch._foreach_abs([HALF, HALF]), {("_foreach_abs", "float16"): 1}),
        (lambda: torch.arange(3) + 1, {("arange", "int64"): 1, ("add", "int64"): 1}),
        (lambda: HALF.clone().relu_(), {("clone", "float16"): 1, ("relu_", "float16"): 1}),
        (lambda: HALF.view(4).unsqueeze(0).t().expand(4, 2).detach(), {}),
        (lambda: torch.empty_like(HALF).shape, {}),
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


class Nested(torch.autograd.Function):
    """Runs a backward pass inside its backward pass; 60 levels deep autograd goes on in another thread."""

    threads: set[int]

    @staticmethod
    def forward(ctx: FunctionCtx, inputs: Tensor, levels: int) -> Tensor:
        ctx.levels = levels  # type: ignore[attr-defined]
        return inputs.clone()

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        levels: int = ctx.levels  # type: ignore[attr-defined]
        Nested.threads.add(threading.get_ident())
        if levels == 0:
            return gradient.sin(), None
        with torch.enable_grad():
            inner = Nested.apply(torch.ones(2, requires_grad=True), levels - 1).sum()
        inner.backward()
        return gradient, None


def test_a_backward_pass_in_autograd_s_own_thread_is_counted() -> None:
    Nested.threads = set()
    outputs = Nested.apply(torch.ones(2, requires_grad=True), 70)
    with OperatorCounter() as counter:
        outputs.sum().backward()
    assert len(Nested.threads) == 2
    assert counted(counter)["sin", "float32"] == 1


@pytest.mark.gpu
@gpu
def test_a_gpu_s_backward_pass_is_counted() -> None:
    weight = torch.rand(8, 8, device="cuda", requires_grad=True)
    with OperatorCounter() as counter:
        with torch.autocast("cuda", dtype=torch.float16):
            product = torch.rand(8, 8, device="cuda") @ weight
        product.float().sum().backward()
    assert counted(counter)["mm", "float16"] == 2


def test_nested_tensors_are_found_in_order() -> None:
    class Pair(NamedTuple):
        left: Any
        right: Any

    a, b, c, d = (torch.tensor(i) for i in range(4))
    nest = {"x": (a, [b, None, "text", 3]), "y": Pair(c, {"z": d})}
    assert [tensor.item() for tensor in tensors_in(nest)] == [0, 1, 2, 3]
    assert list(tensors_in("text")) == []
