"""Finds the module that overflows first: the largest absolute value of each output and of its gradient."""

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakTensorKeyDictionary

from amptui.probes.gradients import (
    MAX_NAMES,
    dense_elements,
    is_measurable,
    largest_absolute,
    together,
)
from amptui.probes.probe import Answer, Moment, Probe, Sender, answer_all, dtype_name, tensors_in
from amptui.records.findings import ModuleRange, ModulesTraced, NonFiniteCause

MAX_NEAREST = 8
"""How many modules one record names as closest to an overflow."""

TRACE_GAP_STEPS = 200
"""Steps between automatic traces while trouble lasts."""

_Way = Literal["forward", "backward"]


class ModuleTrace:
    """Hooks on every module for one step: the largest absolute value of each output and of its gradient.

    A context manager, used once, around the forward and backward pass of a step. It changes no loss and no
    gradient, not by a bit. If a container returns the tensor of its last child, only the child is named; a
    tensor that was modified in place counts as a new output. Every call of a module counts, also the second
    one of a checkpointed module. Gradients are measured as backward left them: scaled if the loss was scaled.

    Compiled models run eagerly meanwhile, because compiled code does not call its modules. The trace does not
    see calls that bypass ``__call__``; outputs that are sparse, nested, or outside tuples, lists and
    mappings; code in TorchScript or under transforms of ``torch.func``; and the gradients of weights, which
    :class:`~amptui.probes.gradients.GradientProbe` measures.

    If parameters or buffers were not finite before the step, no module is named. ``infinite_at_start`` names
    those that held Inf from the start, as an attention mask does: without a gradient, their Inf is meant to
    be there. NaN never is.
    """

    def __init__(self, model: nn.Module, infinite_at_start: Collection[str] = ()) -> None:
        self._modules = [
            (name, module)
            for name, module in model.named_modules()
            if not isinstance(module, torch.jit.ScriptModule)  # these accept no hooks
        ]
        self._device = next((p.device for p in model.parameters()), None)
        # Lists, because append is atomic: autograd runs CUDA's backward pass in other threads.
        self._measurements: list[tuple[partial[ModuleRange], Tensor]] = []
        """Outputs and their gradients."""
        self._infinite_at_start = infinite_at_start
        self._buffers: dict[str, Tensor] = {}
        self._parameters: dict[str, Tensor] = {}
        self._with_gradient: set[str] = set()
        self._model = model
        self._inputs: list[tuple[str, Tensor]] = []
        self._is_called = False
        self._seconds_spent: list[float] = []
        self._versions = WeakTensorKeyDictionary()
        self._hooks = ExitStack()
        self._is_used = False

    def __enter__(self) -> "ModuleTrace":
        """Register the hooks."""
        assert not self._is_used, "one trace, one step"
        self._is_used = True
        began = time.perf_counter()
        self._hooks.enter_context(torch.compiler.set_stance("force_eager"))
        if not isinstance(self._model, torch.jit.ScriptModule):
            handle = self._model.register_forward_pre_hook(self._see_inputs, with_kwargs=True)
            self._hooks.callback(handle.remove)
        for name, module in self._modules:
            self._hooks.callback(module.register_forward_hook(partial(self._see_output, name)).remove)
        self._buffers = largest_of(self._model.named_buffers())  # the forward pass changes BatchNorm's
        self._spent_since(began)
        return self

    def __exit__(self, *_error: object) -> None:
        """Remove all hooks, those on tensors too: a graph may outlive the step."""
        began = time.perf_counter()
        self._hooks.close()
        self._spent_since(began)

    def values(self) -> Tensor:
        """One float32 row on the model's device, for :meth:`record`; call it after the backward pass."""
        if not self._measurements:
            return torch.zeros(0, device=self._device)
        began = time.perf_counter()
        parameters = list(self._model.named_parameters())
        self._with_gradient = {name for name, parameter in parameters if parameter.grad is not None}
        self._parameters = largest_of(parameters)
        largest = [value for _, value in self._measurements]
        largest += [value for _, value in self._inputs]
        largest += [*self._parameters.values(), *self._buffers.values()]
        device = self._device or largest[0].device
        # The replicas of nn.DataParallel have theirs on other GPUs.
        row = torch.stack(together(largest, device))
        self._spent_since(began)
        return row

    def record(self, row: Sequence[float], **fields: Any) -> ModulesTraced:
        """The record of a delivered ``row`` of :meth:`values`; ``fields`` are those that it does not hold."""
        ranges = [
            measured(largest=value) for (measured, _), value in zip(self._measurements, row, strict=False)
        ]
        bad = [module_range for module_range in ranges if not math.isfinite(module_range.largest)]
        first = min(bad, key=lambda module_range: module_range.way == "backward", default=None)
        rest = row[len(ranges) :]
        inputs: tuple[str, ...] = ()
        lost_names = list[str]()
        cause: NonFiniteCause = ""
        if first is not None:
            inputs = bad_inputs(self._inputs, rest)
            lost_names = self._lost_names(rest[len(self._inputs) :], first.name)
            cause = self._cause(first, inputs, lost_names)
        is_earlier = bool(inputs or lost_names)
        # One for each module and way: a module may be called in a loop.
        nearest: dict[tuple[str, str], ModuleRange] = {}
        finite = [module_range for module_range in ranges if math.isfinite(module_range.largest)]
        for module_range in sorted(finite, key=lambda module_range: module_range.largest, reverse=True):
            nearest.setdefault((module_range.name, module_range.way), module_range)
        return ModulesTraced(
            first=None if is_earlier else first,
            nearest=() if is_earlier else tuple(nearest.values())[:MAX_NEAREST],
            inputs=inputs,
            cause=cause,
            modules=len(self._modules),
            seconds=sum(self._seconds_spent),
            lost=tuple(lost_names[:MAX_NAMES]),
            lost_count=len(lost_names),
            **fields,
        )

    def _cause(self, first: ModuleRange, inputs: Collection[str], lost: Sequence[str]) -> NonFiniteCause:
        if inputs:
            return "input"
        if lost:
            return "weights" if lost[0] in self._parameters else "buffer"
        if first.way == "backward":
            return "gradient"
        # bfloat16 has FP32's range, and NaN is no number that is too large.
        if first.dtype != "float16" or math.isnan(first.largest):
            return "output"
        return "overflow" if self._is_called else "unknown"

    def _lost_names(self, largest: Sequence[float], module: str) -> list[str]:
        """What was not finite before the step, by its delivered values: names, parameters first.

        Only parameters with a gradient count, and everything that ``module`` itself owns, the first one with
        a non-finite output or gradient. Elsewhere a parameter without a gradient may never have been
        initialized, and BatchNorm in training does not read its statistics.
        """
        meant = {*self._infinite_at_start} - self._with_gradient
        return [
            name
            for name, value in zip([*self._parameters, *self._buffers], largest, strict=True)
            if not math.isfinite(value) and not (math.isinf(value) and name in meant)
            if name in self._with_gradient or name.rpartition(".")[0] == module
        ]

    def _see_inputs(self, _model: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        with suppress(torch.OutOfMemoryError):  # the training goes on, and the cause is not known
            self._inputs += largest_inputs(args, kwargs)
            self._is_called = True

    def _see_output(self, name: str, module: nn.Module, _args: object, output: object) -> None:
        """The forward hook of the module called ``name``."""
        began = time.perf_counter()
        kind = type(module).__name__
        for tensor in tensors_in(output):
            if not is_measurable(tensor):
                continue
            version = 0 if tensor.is_inference() else tensor._version
            if self._versions.get(tensor) == version:
                continue  # an inner module returned it, and nothing has modified it since
            self._versions[tensor] = version
            self._measure(name, kind, "forward", tensor)
            if tensor.requires_grad:
                # A module's full backward hook would return a view, which later modules may not change in
                # place.
                handle = tensor.register_hook(partial(self._see_gradient, name, kind))
                self._hooks.callback(handle.remove)
        self._spent_since(began)

    def _see_gradient(self, name: str, kind: str, gradient: Tensor) -> None:
        """The hook of an output's gradient."""
        began = time.perf_counter()
        if is_measurable(gradient):
            self._measure(name, kind, "backward", gradient)
        self._spent_since(began)

    def _measure(self, name: str, kind: str, way: _Way, tensor: Tensor) -> None:
        try:
            largest = largest_absolute(tensor)
        except RuntimeError:
            return  # out of memory, or an unusual tensor: the step must not fail
        measured = partial(ModuleRange, name=name, kind=kind, way=way, dtype=dtype_name(tensor.dtype))
        self._measurements.append((measured, largest))

    def _spent_since(self, began: float) -> None:
        self._seconds_spent.append(time.perf_counter() - began)


class TraceProbe(Probe):
    """Traces the next step when somebody asks for it, or :meth:`arm_after` trouble."""

    what = "trace"

    def __init__(self, model: nn.Module, infinite_at_start: Collection[str], sender: Sender) -> None:
        self._model, self._infinite_at_start = model, infinite_at_start
        self._sender = sender
        self.answers: list[Answer] = []
        """For the requests of a trace that was not made yet."""
        self._is_armed = False
        self._trouble_step = -TRACE_GAP_STEPS
        self._open: ModuleTrace | None = None
        """Of the step that is being traced."""

    def is_due(self) -> bool:
        return self._is_armed or bool(self.answers)

    def arm_after(self, trouble_step: int) -> None:
        """Trace the next step if ``trouble_step``, the newest with an unexplained NaN or Inf, is new."""
        if trouble_step and trouble_step - self._trouble_step >= TRACE_GAP_STEPS:
            self._trouble_step = trouble_step
            self._is_armed = True

    def explain(self, batches: Iterable[object], step: int, precision: str) -> None:
        """Emit that ``batches`` of ``step`` on the host, whose loss was not finite, hold NaN or Inf, if so.

        Then no later step is traced for it: there the weights may be lost, too. Of a pair only the first
        counts, and of a mapping nothing: labels may hold NaN that the loss leaves out.
        """
        if step - self._trouble_step < TRACE_GAP_STEPS:
            return
        for batch in batches:
            inputs = batch[:1] if isinstance(batch, tuple | list) else [batch]
            largest = [] if isinstance(batch, Mapping) else largest_inputs(inputs, {})
            if bad := bad_inputs(largest, [value.item() for _, value in largest]):
                self._trouble_step = step
                traced = partial(ModulesTraced, time=time.time(), step=step, precision=precision)
                self._sender.emit(traced(inputs=bad, cause="input"))
                return

    def around(self) -> ModuleTrace:
        self._open = ModuleTrace(self._model, self._infinite_at_start)
        return self._open

    def collect(self, moment: Moment) -> None:
        trace, self._open, self._is_armed = self._open, None, False
        answers, self.answers = self.answers, []
        is_requested = bool(answers)
        assert trace is not None, "the step was traced"

        def deliver(values: Sequence[float] | None, scale: float | None, _seconds: float | None) -> None:
            if values is not None:
                self._sender.emit(
                    trace.record(
                        values,
                        time=time.time(),
                        step=moment.step,
                        precision=moment.precision.name,
                        loss_scale=scale,
                        asked=is_requested,
                    )
                )
            answer_all(answers, "its results were lost" if values is None else "")

        with self._sender.suppress_errors(self.what, answers):
            self._sender.push(trace.values(), moment.precision.scale, deliver)


def largest_inputs(args: Sequence[object], kwargs: Mapping[str, object]) -> list[tuple[str, Tensor]]:
    """The largest value of each floating-point input, by index or keyword; never waits for the device.

    Its sign is kept: the -Inf of a mask is meant to be there, and is no cause.
    """
    values = [*((str(index), value) for index, value in enumerate(args)), *kwargs.items()]
    with torch.no_grad():
        return [
            (name, tensor.detach().amax().float())
            for name, value in values
            for tensor in tensors_in(value)
            if is_measurable(tensor) and tensor.is_floating_point() and tensor.numel()
        ]


def bad_inputs(inputs: Sequence[tuple[str, Tensor]], row: Sequence[float]) -> tuple[str, ...]:
    """Those of :func:`largest_inputs` that hold NaN or Inf, by their delivered values, first in ``row``."""
    measured = zip(inputs, row, strict=False)
    bad = [name for (name, _), value in measured if math.isnan(value) or value == math.inf]
    return tuple(dict.fromkeys(bad))[:MAX_NAMES]


def infinite_names(model: nn.Module) -> frozenset[str]:
    """The parameters and buffers that hold Inf now; waits for the device."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    largest = largest_of(tensors)
    if not largest:
        return frozenset()
    first, *_ = largest.values()
    values = torch.stack(together(list(largest.values()), first.device)).tolist()
    return frozenset(name for name, value in zip(largest, values, strict=True) if math.isinf(value))


@torch.no_grad()
def largest_of(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """The largest absolute value of each that can be measured; never waits for the device."""
    values = ((name, _largest(tensor)) for name, tensor in tensors)
    return {name: largest for name, largest in values if largest is not None}


def _largest(tensor: Tensor) -> Tensor | None:
    """The largest absolute value of this process's part; None if it has nothing that can be measured."""
    if is_lazy(tensor) or tensor.is_meta or not is_measurable(tensor):
        return None
    if dense_elements(tensor.detach()) is None:
        return None  # another process has all of it
    try:
        return largest_absolute(tensor)
    except RuntimeError:
        return None  # an unusual tensor, or no memory: the step must not fail
