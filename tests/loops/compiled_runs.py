"""Compiled runs for tests: with torch's ``aot_eager`` backend, or one of their own, that need no compiler."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from amptui import Data, DataRequest
from amptui.loops.compilation import compile_in_place
from amptui.loops.setup import Prepared
from tests.tiny import Tiny


class Uneven(Tiny):
    """Its epochs end with half a batch."""

    def load_data(self, request: DataRequest) -> Data:
        data = super().load_data(request)
        arrays: Any = data.train
        rows = TensorDataset(arrays.inputs.float(), arrays.targets)
        return replace(data, train=DataLoader(rows, self.batch_size), validation=None)


@contextmanager
def nothing_compiled() -> Iterator[None]:
    """Nothing compiled before, and no limit that a test raises within stays."""
    import torch._dynamo

    config: Any = torch._dynamo.config
    limit = config.recompile_limit
    torch.compiler.reset()
    try:
        yield
    finally:
        config.recompile_limit = limit
        torch.compiler.reset()


def keeping(graphs: list[object]) -> Callable[..., Any]:
    """A backend that runs each graph as it is and adds it to ``graphs``."""

    def backend(graph: Any, _inputs: object) -> Any:
        graphs.append(graph)
        return graph.forward

    return backend


def failing_in_autocast(graph: Any, _inputs: object) -> Any:
    """A backend for FP32 alone."""
    if torch.is_autocast_enabled("cpu"):
        raise RuntimeError("no such kernel")
    return graph.forward


def compiled(prepared: Prepared, backend: str | Callable[..., Any] = "aot_eager") -> Prepared:
    """As ``--compile`` prepares a run, with another backend."""
    compile_in_place(prepared.model, backend=backend)
    return prepared
