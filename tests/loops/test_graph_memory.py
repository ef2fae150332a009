"""CUDA graphs' memory on a CPU: what compiled graphs return is overwritten by the next iteration.

Each output of a graph lies in memory of its own that is filled with NaN as a new iteration begins, as
``--compile reduce-overhead`` may overwrite it. Whatever is read too late is NaN here.
"""

import importlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from amptui.loops import compilation, setup
from amptui.records.control import Control
from amptui.records.run import EpochFinished
from tests.loops.compiled_runs import nothing_compiled
from tests.tiny import Log, Tiny, losses, prepare, switching, train

pytestmark = pytest.mark.ci  # each precision is traced anew

Graph = Callable[..., Any]

_aot: Any = importlib.import_module("torch._functorch.aot_autograd")
"""Partly without types, and not exported."""


class StaticMemory:
    """A backend of torch.compile whose graphs return tensors in static memory."""

    def __init__(self) -> None:
        self._iteration: object = None
        self._memory: dict[tuple[object, ...], Tensor] = {}
        self.filled = 0

    def compile(self, module: Any, examples: Any) -> Graph:
        """What torch calls for each part that it has traced."""
        result: Graph = _aot.aot_module_simplified(
            module, examples, fw_compiler=self._graph, bw_compiler=self._graph
        )
        return result

    def _graph(self, module: Any, _: Any) -> Graph:
        def run(*arguments: Any) -> list[Any]:
            self._begin_iteration()
            inputs = {_memory_of(value) for value in arguments if isinstance(value, Tensor)}
            outputs = enumerate(module(*arguments))
            return [self._in_static_memory((id(module), i), output, inputs) for i, output in outputs]

        boxed: Graph = _aot.make_boxed_func(run)
        return boxed

    def _begin_iteration(self) -> None:
        from torch._inductor.cudagraph_trees import MarkStepBox

        if MarkStepBox.mark_step_counter == self._iteration:
            return
        self._iteration = MarkStepBox.mark_step_counter
        for memory in self._memory.values():
            if memory.is_floating_point():
                memory.fill_(math.nan)
                self.filled += 1

    def _in_static_memory(self, place: tuple[object, ...], output: Any, inputs: set[int]) -> Any:
        if not isinstance(output, Tensor) or not output.numel() or _memory_of(output) in inputs:
            return output
        kind = (*place, output.shape, output.stride(), output.dtype)
        if kind not in self._memory:
            self._memory[kind] = torch.empty_strided(output.shape, output.stride(), dtype=output.dtype)
        return self._memory[kind].copy_(output).detach()


def _memory_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[StaticMemory]:
    result = StaticMemory()

    def compile_in_place(model: nn.Module, **_: Any) -> None:
        compilation.compile_in_place(model, backend=result.compile)

    monkeypatch.setattr(setup, "compile_in_place", compile_in_place)
    monkeypatch.setattr(setup, "uses_cuda_graphs", lambda mode, _: mode is not None)
    monkeypatch.setattr(setup, "missing_for_compile", lambda _: None)
    with nothing_compiled():
        yield result


class LossInGraph(Tiny):
    """Its model returns the loss: an output of the graph."""

    def build_model(self) -> nn.Module:
        return WithLoss(super().build_model())

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        loss: Tensor = model(*batch)
        return loss

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"loss": self.loss(model, batch)}


class WithLoss(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.inner(inputs), targets)


def trained(**options: Any) -> tuple[list[float | None], list[float | None]]:
    log, control = Log(), Control()
    log.watch = switching(control, {4: "bf16", 8: "fp32"})
    train(prepare(LossInGraph(epochs=3), clip_norm=0.5, accumulate=3, **options), log, control)
    ends = [record.validation for record in log.of(EpochFinished)]
    return losses(log), [end.loss for end in ends if end is not None]


@pytest.mark.torch
def test_all_is_read_before_the_next_iteration_overwrites_it(memory: StaticMemory) -> None:
    steps, validations = trained()
    compiled_steps, compiled_validations = trained(compile_mode="reduce-overhead")
    assert memory.filled > len(steps)
    assert compiled_steps == pytest.approx(steps, rel=0.02)
    assert compiled_validations == pytest.approx(validations, rel=0.02)
