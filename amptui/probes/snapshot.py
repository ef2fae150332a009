"""Saves what a forward pass changes even without an optimizer step, so that it can be undone."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from amptui.device.accelerator import random_states, set_random_states

MAX_FROZEN_BYTES = 2**28
"""More frozen weights are a pretrained base with adapters: forward passes do not change them, and copies
would take memory that the training needs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Generators:
    """The states of the process's random generators: of Python, numpy, torch and each GPU."""

    python: tuple[Any, ...]
    numpy: dict[str, Any]
    cpu: Tensor
    gpus: tuple[Tensor, ...]
    device: torch.device
    """That of the training."""

    @classmethod
    def current(cls, device: torch.device) -> "Generators":
        """The current states, in host memory; those of GPUs only if ``device`` is one."""
        return cls(
            python=random.getstate(),
            numpy=np.random.get_state(legacy=False),
            cpu=torch.get_rng_state(),
            gpus=random_states(device),
            device=device,
        )

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], device: torch.device) -> "Generators":
        """Inverse of :meth:`plain`: ``device``, another GPU perhaps, then draws as the one of before."""
        inner = {name: np.asarray(value) for name, value in plain["numpy"]["state"].items()}
        gpus = list(random_states(device))
        if gpus and plain["gpu"] is not None:
            gpus[device.index or 0] = plain["gpu"]
        return cls(
            python=plain["python"],
            numpy={**plain["numpy"], "state": inner},
            cpu=plain["cpu"],
            gpus=tuple(gpus),
            device=device,
        )

    def plain(self) -> dict[str, Any]:
        """Numbers, strings and tensors, for a file; of GPUs only of ``device`` itself."""
        gpu = self.gpus[self.device.index or 0] if self.gpus else None
        return {"python": self.python, "numpy": _flat(self.numpy), "cpu": self.cpu, "gpu": gpu}

    def apply(self) -> None:
        """Set all generators to these states."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.cpu)
        set_random_states(self.device, self.gpus)

    def same(self, other: "Generators") -> bool:
        """Whether both would draw the same numbers."""
        return (
            self.python == other.python
            and _flat(self.numpy) == _flat(other.numpy)
            and torch.equal(self.cpu, other.cpu)
            and all(map(torch.equal, self.gpus, other.gpus))
        )


class Snapshot:
    """Copies of what a forward pass can change without an optimizer step: buffers and random generators.

    Also of the weights that a forward pass can change: frozen ones, such as a momentum encoder's, up to
    ``MAX_FROZEN_BYTES``, and embeddings with a ``max_norm``. Not of a model's plain attributes, its own
    generators, or cuDNN's dropout state between the layers of an RNN. Copies are on the device of the
    originals, so nothing waits.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._device = device
        self._buffers = [(module, dict(module._buffers.items())) for module in model.modules()]
        self._values = [(tensor, tensor.detach().clone()) for tensor in _changeable(model)]
        self._generators = Generators.current(device)

    @property
    def has_drawn(self) -> bool:
        """Whether a random number was drawn since this was taken or restored."""
        return not self._generators.same(Generators.current(self._device))

    def restore(self) -> None:
        """Restore everything in place, bit for bit; may be called repeatedly."""
        for module, buffers in self._buffers:  # they may have been assigned, added or removed
            present = module._buffers
            for name in present.keys() - buffers.keys():
                del present[name]
            for name, buffer in buffers.items():
                if name not in present or present[name] is not buffer:
                    present[name] = buffer
        with torch.no_grad():
            for tensor, value in self._values:
                tensor.copy_(value)
        self._generators.apply()


def _changeable(model: nn.Module) -> Iterator[Tensor]:
    """The tensors of ``model`` that a forward pass may change in place."""
    # Lazy tensors have no values yet.
    yield from (buffer for buffer in model.buffers() if not is_lazy(buffer))
    frozen = [p for p in model.parameters() if not p.requires_grad and not is_lazy(p)]
    if sum(parameter.nbytes for parameter in frozen) <= MAX_FROZEN_BYTES:
        yield from frozen
    for module in model.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            yield module.weight


def _flat(state: Mapping[str, Any]) -> dict[str, Any]:
    """A numpy state without arrays, so that ``==`` compares it."""
    inner = {name: np.asarray(value).tolist() for name, value in state["state"].items()}
    return {**state, "state": inner}


def before_step(model: nn.Module, optimizer: Optimizer, device: torch.device) -> Callable[[], None]:
    """Copy what the next step changes before any weight; returns what undoes a step that failed."""
    before = Snapshot(model, device)
    # Counters such as Adam's ``step`` change before any weight does. Moments are not copied: they take twice
    # the memory of the weights. If an optimizer that is not fused runs out of memory halfway, some moments
    # contain a gradient twice.
    counters = {
        parameter: {
            name: value.detach().clone() if isinstance(value, Tensor) else value
            for name, value in state.items()
            if isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1)
        }
        for parameter, state in optimizer.state.items()
    }

    def restore() -> None:
        before.restore()
        states = optimizer.state
        for parameter in [parameter for parameter in states if parameter not in counters]:
            del states[parameter]
        for parameter, numbers in counters.items():
            for name, value in numbers.items():
                if isinstance(value, Tensor):
                    states[parameter][name].copy_(value)
                else:
                    states[parameter][name] = value

    return restore
