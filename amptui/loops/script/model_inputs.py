"""Counts the samples of a loop that says nothing of its batches: by what its model is called with.

The first dimension of a model's input is its batch in most scripts. Where that is not sure, nothing is
counted: a model that is called several times in a backward pass, inputs whose first dimensions differ or
grow, or have no other dimension, layers that take time first.

NaN and Inf may come from the newest inputs, the weights or the buffers. For these nothing is hooked, and
nothing is measured before a step was not finite, but once at the end of the run.
"""

import math
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, is_grad_enabled, nn
from torch.compiler import is_dynamo_compiling

from amptui.device.readback import Readback
from amptui.loops.script.guard import not_compiled
from amptui.probes.buffers import BufferWatch
from amptui.probes.flop_counter import is_anything_compiled
from amptui.probes.gradients import MAX_NAMES, together
from amptui.probes.module_trace import bad_inputs, largest_inputs, largest_of
from amptui.records.findings import ModulesTraced, NonFiniteCause
from amptui.records.run import Record

_TIME_FIRST = (nn.RNNBase, nn.Transformer, nn.TransformerEncoderLayer, nn.MultiheadAttention)


_TABLES = ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs")
"""What a module keeps of its hooks: the functions, and which of them take keyword arguments."""


class _OwnHooks(dict[int, Any]):
    """A module's table of hooks, with one of ours that no copy and no saved file of the module has.

    Each call of the module goes through it: a subclass of OrderedDict takes three microseconds more for that.
    """

    def __init__(self, key: int) -> None:
        super().__init__()
        self._own_key = key

    def __reduce_ex__(self, _protocol: Any) -> Any:
        others = [(key, hook) for key, hook in self.items() if key != self._own_key]
        return OrderedDict, (), None, None, iter(others)

    def move_to_end(self, key: int, *, last: bool = True) -> None:
        """As that of an OrderedDict, for hooks that the script wants to be called first."""
        others = [] if last else [(other, hook) for other, hook in self.items() if other != key]
        for other, hook in ((key, self[key]), *others):
            del self[other]
            self[other] = hook

    def __deepcopy__(self, _memo: Any) -> "OrderedDict[int, Any]":
        return OrderedDict((key, hook) for key, hook in self.items() if key != self._own_key)


class FreshSamples:
    """Counts samples that no backward pass has used yet: as loaded, else as the model is called."""

    def __init__(self) -> None:
        self.samples: int | None = 0
        """Those that no pass has used yet; None if they are not known."""
        self.rest: int | None = 0
        """What ``samples`` is after a pass."""
        self.calls = 0
        """Of the model, since the last pass."""
        self.begins_step = True
        """Whether no call has been seen since the last step: losses of one batch are of the same samples."""
        self.may_feed_itself = False
        """Whether the model has run more than once since the last step: inputs may be what it made."""
        self.is_told = self.counts_inputs = False
        """Whether the loop says what it has loaded; whether inputs are counted as the model is called."""
        self._data_parallel = self._usual_size = 0
        self._newest: Sequence[tuple[int | str, weakref.ref[Tensor]]] = ()
        """The tensors of the model's newest call. While a tensor lives, it has one weak reference."""
        self._version = 0
        """That of the first of them."""
        self._thread = 0
        self._remove: Callable[[], object] | None = None
        """Takes the hook off; None without one."""

    def count_inputs(self, model: nn.Module, data_parallel: int) -> None:
        """Count what ``model`` is called with from now on, here and on the other ranks.

        ``data_parallel`` ranks take as many as this one does; 0 if that number is not known.
        """
        self.counts_inputs, self.samples, self.rest = True, None, None
        self._data_parallel, self._thread = data_parallel, get_ident()
        has_hooks = any(vars(model).get(name) for name in _TABLES)
        takes_time_first = any(
            isinstance(module, _TIME_FIRST) and not getattr(module, "batch_first", False)
            for module in model.modules()
        )
        may_hook = not (has_hooks or is_anything_compiled() or takes_time_first)
        if may_hook and type(model).__call__ is nn.Module.__call__:
            self._remove = _hook(model, self._see)

    def newest_inputs(self) -> list[tuple[str, Tensor]]:
        """What the newest call was given and is there still, by index or keyword."""
        return [(str(name), tensor) for name, ref in self._newest if (tensor := ref()) is not None]

    def newest_batch(self) -> list[tuple[str, Tensor]]:
        """Those inputs, if no model has made or changed them as far as that shows."""
        inputs = [] if self.may_feed_itself else self.newest_inputs()
        if inputs and inputs[0][1]._version != self._version:
            return []  # changed in place since
        return [(name, tensor) for name, tensor in inputs if tensor.grad_fn is None]

    def load(self, samples: int, *, adds: bool) -> None:
        """The loop says that it has loaded a batch; ``adds``: the batches before it are not used up."""
        if self.counts_inputs:
            self.close()  # it knows better
        self.is_told, self.counts_inputs, self.rest = True, False, 0
        self.samples = samples + ((self.samples or 0) if adds else 0)

    def take(self) -> int | None:
        """A pass uses them."""
        samples, self.samples, self.calls = self.samples, self.rest, 0
        return samples

    def close(self) -> None:
        """Look at no inputs any more."""
        self.samples = self.rest
        remove, self._remove = self._remove, None
        if remove is not None:
            remove()

    def _see(self, _model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if is_dynamo_compiling() or get_ident() != self._thread:
            return
        if not is_grad_enabled():
            self.may_feed_itself = True
            return
        before, version, begins_step = self._newest, self._version, self.begins_step
        self.calls, self.begins_step = self.calls + 1, False
        if len(args) == 1 and not kwargs and type(only := args[0]) is Tensor and only.dim() > 1:
            self._newest, self._version = ((0, weakref.ref(only)),), only._version  # the usual case
            size = only.size(0)
        else:
            size = self._size_of(args, kwargs)
        if self.calls > 1:
            self.samples, self.may_feed_itself = None, True  # a pass of several calls
        elif not size or size > (self._usual_size or size):  # a last batch may be smaller
            self.close()
        else:
            self._usual_size = self._usual_size or size
            self.samples = size * self._data_parallel or None
            if not begins_step and before and version == self._version and before[0][1] is self._newest[0][1]:
                self.samples = 0

    def _size_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """The first dimension of all inputs of a call; 0 if they disagree."""
        try:
            inputs: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
            named = [(name, value) for name, value in inputs if isinstance(value, Tensor) and value.dim()]
            self._newest = [(name, weakref.ref(tensor)) for name, tensor in named]
            self._version = named[0][1]._version if named else 0
            sizes = {tensor.shape[0] for _, tensor in named}
            if all(tensor.dim() == 1 and tensor.is_floating_point() for _, tensor in named):
                sizes.clear()  # one sample's features as well
        except Exception:  # noqa: BLE001 - a class of the script's own may raise anything
            sizes = set()
        return sizes.pop() if len(sizes) == 1 else 0


def _hook(model: nn.Module, see: Callable[..., None]) -> Callable[[], object]:
    not_compiled(FreshSamples._see, calls=True)
    # A handle of somebody else's would look into the module's own tables: it has none yet. Not by assignment:
    # a wrapper, as Fabric's, would set it on what it wraps, too.
    tables = {name: _OwnHooks(-1) for name in _TABLES}
    vars(model).update(tables)
    handle = model.register_forward_pre_hook(see, with_kwargs=True)
    for table in tables.values():
        table._own_key = handle.id
    reference = weakref.ref(model)  # the script may drop it

    def remove() -> None:
        handle.remove()
        own = {} if (own_model := reference()) is None else vars(own_model)
        for name, table in tables.items():
            if not table and own.get(name) is table:
                own[name] = OrderedDict()

    return remove


_GAP_STEPS = 200
"""Steps between looks while trouble lasts."""


class NonFiniteOrigin:
    """Measures what one optimizer's model has read, without waiting for the device."""

    def __init__(self, device: torch.device, readback: Readback, emit: Callable[[Record], object]) -> None:
        self._device, self._readback, self._emit = device, readback, emit
        self._next_step = 0
        self._causes = set[NonFiniteCause]()
        self._bad_buffers = set[str]()
        """Those that were told."""

    def measure(
        self,
        model: nn.Module | None,
        inputs: Sequence[tuple[str, Tensor]],
        step: int,
        precision: str,
        *,
        is_last: bool = False,
    ) -> None:
        """Measure after ``step``, which was not finite, unless that was done not long ago; or at the end.

        Without a ``model`` only the inputs, and only what is wrong with them is told.
        """
        if step < self._next_step and not is_last:
            return
        self._next_step = step + _GAP_STEPS

        def deliver(row: Sequence[float] | None, _seconds: float | None) -> None:
            if row is None:
                return
            split, now = len(row) - len(watch.names), time.time()
            bad = () if is_last else bad_inputs(largest, row)
            if model is None and not bad:
                return
            measured = zip(weights, row[len(largest) : split], strict=True)
            lost = [name for name, value in measured if not math.isfinite(value)]
            cause: NonFiniteCause = "input" if bad else "weights" if lost else "unknown"
            statistics = watch.record(row[split:], time=now, step=step)
            if statistics is not None:
                if not self._bad_buffers.issuperset(statistics.names):
                    self._emit(statistics)
                self._bad_buffers.update(statistics.names)
                if cause == "unknown" and (names := [n for n in statistics.names if is_last or n in read]):
                    cause, lost = "buffer", names
            if is_last and (not lost or cause in self._causes):
                return
            self._causes |= {cause, "weights"} if lost and cause != "buffer" else {cause}
            self._emit(
                ModulesTraced(
                    time=now,
                    step=step,
                    precision=precision,
                    lost=tuple(lost[:MAX_NAMES]),
                    lost_count=len(lost),
                    inputs=bad,
                    cause=cause,
                )
            )

        # A script's class may refuse anything: then the cause stays unknown.
        with suppress(RuntimeError, TypeError, NotImplementedError):
            largest = largest_inputs((), dict(inputs))
            measured_model = nn.Module() if model is None else model
            weights = largest_of((n, p) for n, p in measured_model.named_parameters() if p.requires_grad)
            # Inf is meant to be in a mask, but not in BatchNorm's running statistics.
            buffers = [name for name, _ in measured_model.named_buffers()]
            watch = BufferWatch(measured_model, {name for name in buffers if ".running_" not in f".{name}"})
            # In training BatchNorm only writes its statistics.
            read = {n for n in buffers if not measured_model.get_submodule(n.rpartition(".")[0]).training}
            values = together([*(value for _, value in largest), *weights.values()], self._device)
            values.append(watch.measure().to(self._device, non_blocking=True))
            self._readback.push(values, deliver, timed=False)
