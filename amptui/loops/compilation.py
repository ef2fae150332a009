"""``torch.compile`` for a run: whether it works here, the model compiled in place, its compilations timed."""

import importlib.util
import os
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from amptui.device.accelerator import capabilities, properties
from amptui.records.findings import ModelCompiled
from amptui.records.run import Phase, PhaseChanged, Record

MAX_VARIANTS = 64
"""Compiled variants of one function. torch's own limit is 8, after which it runs eagerly; the model alone
needs ten for five precisions in training and validation, and twice as many where batch sizes vary."""

_MIN_CAPABILITY = (7, 0)
"""Oldest compute capability that Triton compiles for, as torch itself checks (torch/utils/_triton.py)."""

_MAX_REASON_CHARACTERS = 300


class Missing(NamedTuple):
    """What ``torch.compile`` needs and does not find here, and a hint."""

    what: str
    hint: str


def missing_for_compile(device: torch.device) -> Missing | None:
    """What torch's default backend needs on ``device`` and is not here; None if it can work.

    On a CPU it builds C++ with ``$CXX`` or ``g++``; on a GPU Triton builds a launcher with ``$CC``, gcc or
    clang. Both include ``Python.h``.
    """
    if capabilities(device).triton:
        gpu = properties(device)
        if gpu.compute_capability is not None and gpu.compute_capability < _MIN_CAPABILITY:
            minimum = ".".join(map(str, _MIN_CAPABILITY))
            return Missing(f"{gpu.name} is below compute capability {minimum}", "train without --compile")
        if importlib.util.find_spec("triton") is None:
            return Missing("no Triton", "pip install triton")
        compilers = (os.environ["CC"],) if "CC" in os.environ else ("gcc", "clang")
        if not any(map(shutil.which, compilers)):
            return Missing(f"no C compiler ({' or '.join(compilers)})", "install gcc, or set CC")
    elif shutil.which(compiler := os.environ.get("CXX", "g++")) is None:
        return Missing(f"no C++ compiler ({compiler})", "install g++, or set CXX")
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.is_file():
        return Missing(f"no {header}", "install Python's headers (python3-dev)")
    return None


def compile_in_place(model: nn.Module, **options: Any) -> None:
    """Let ``model`` run through ``torch.compile`` from its next call on; names of parameters stay.

    Each precision is compiled once: torch keeps a variant for each state of autocast and of the flags.
    """
    import torch._dynamo.trace_rules  # the limits are torch.compiler's only in newer versions

    # An earlier model may have used up the limit.
    torch.compiler.reset()
    config: Any = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, MAX_VARIANTS)
    original: Callable[..., Any] = model._call_impl

    def call(*arguments: Any, **options: Any) -> Any:
        return original(*arguments, **options)

    # torch 2.9 compiles no function in a file of torch's unless one from elsewhere calls it: a model whose
    # forward is torch's own, nn.Sequential's say, ran eagerly, and nothing was said. It is offered a call of
    # ours. Newer releases put a function of theirs in between.
    if torch._dynamo.trace_rules.check(model.forward):
        model.__dict__["_call_impl"] = call
    try:
        model.compile(**options)
    finally:
        model.__dict__.pop("_call_impl", None)


def uses_cuda_graphs(mode: str | None, device: torch.device) -> bool:
    """Whether a model compiled in ``mode`` runs in CUDA graphs, whose outputs the next replay overwrites."""
    return capabilities(device).graph_capture and mode in ("reduce-overhead", "max-autotune")


class NewIteration(AbstractContextManager[None]):
    """A forward pass's context that tells CUDA graphs first: what earlier passes returned may be overwritten.

    By itself torch waits for the backward pass of each forward pass, which a pass that failed never gets.
    What a step leaves behind is not read any more by then: its loss was copied on the same stream.
    """

    def __init__(self, context: AbstractContextManager[object]) -> None:
        self._context = context

    def __enter__(self) -> None:
        torch.compiler.cudagraph_mark_step_begin()
        self._context.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)


class CompiledIn(NamedTuple):
    """What was being computed when torch compiled for it."""

    step: int
    precision: str
    training: bool
    """False: a validation."""


@dataclass(slots=True)
class _Compilation:
    """The compilations of one place."""

    seconds: float = 0.0
    python_code: bool = False
    """Python code was compiled; else only a backward pass that was put off, or CUDA graphs were recorded."""
    ids: list[str] = field(default_factory=list)


class CompileWatch:
    """Times torch's compilations while training runs, the model's and those that its own code asks for.

    torch calls back around each; :meth:`tell`, at the next look, makes records of them. They are few and take
    seconds, so steps beside them do not notice the watch. ``where`` is asked when torch starts to compile;
    ``on_compiling`` is called when it begins, and when it ends.
    """

    def __init__(
        self,
        where: Callable[[], CompiledIn],
        emit: Callable[[Record], object],
        on_compiling: Callable[[bool], object],
    ) -> None:
        self._where, self._emit, self._on_compiling = where, emit, on_compiling
        self.pending = False
        """Whether something was compiled since :meth:`tell`."""
        self.busy = False
        """Whether torch is compiling now."""
        self._began = 0.0
        self._announced = False
        self._compilations: dict[CompiledIn, _Compilation] = {}
        self._first_steps: dict[tuple[str, bool], int] = {}

    def begin(self) -> None:
        """Watch from now on."""
        from torch._dynamo.callback import callback_handler

        callback_handler.register_start_callback(self._start)
        callback_handler.register_end_callback(self._end)

    def end(self) -> None:
        """Watch no more, and tell what is left to tell."""
        from torch._dynamo.callback import callback_handler

        with suppress(ValueError):  # torch.compiler.reset() has removed them
            callback_handler.remove_start_callback(self._start)
            callback_handler.remove_end_callback(self._end)
        self.tell()

    def tell(self) -> bool:
        """Emit what was compiled since the last call; whether there was anything."""
        if not self.pending:
            return False
        self.pending = self._announced = False
        compilations, self._compilations = self._compilations, {}
        for place, compilation in compilations.items():
            first = self._first_steps.setdefault((place.precision, place.training), place.step)
            again: Literal["again", "graphs"] = "again" if compilation.python_code else "graphs"
            what: Literal["first", "again", "graphs"] = "first" if place.step == first else again
            self._emit(
                ModelCompiled(
                    time=time.time(),
                    step=place.step,
                    precision=place.precision,
                    training=place.training,
                    seconds=compilation.seconds,
                    what=what,
                    reason=_reason(compilation.ids) if what == "again" else "",
                )
            )
        return True

    def _start(self, _args: Any) -> None:
        self.busy, self._began = True, time.perf_counter()
        self._on_compiling(True)
        if not self._announced:
            self._announced = True
            place = self._where()
            detail = f"compiling the model for {place.precision}"
            phase: Phase = "first step" if place.training else "validating"
            self._emit(PhaseChanged(time=time.time(), phase=phase, detail=detail))

    def _end(self, args: Any) -> None:
        self.busy, self.pending = False, True
        self._on_compiling(False)
        if sys.exc_info()[0] is not None:
            return  # torch calls back for what failed as well
        compilation = self._compilations.setdefault(self._where(), _Compilation())
        compilation.seconds += time.perf_counter() - self._began
        if args.callback_trigger.name == "DYNAMO":
            compilation.python_code = True
            compilation.ids.append(args.compile_id)


def _reason(ids: list[str]) -> str:
    """Why torch could not use what it had compiled, in its own words; "" where it does not say.

    A reason begins with the id of the variant that did not fit: ``0/0: tensor 'x' size mismatch``.
    """
    from torch._dynamo.utils import get_compilation_metrics

    for metrics in reversed(get_compilation_metrics()):
        reason = metrics.recompile_reason
        if reason and metrics.compile_id in ids:
            line = reason.strip().partition("\n")[0]
            return line.partition(": ")[2][:_MAX_REASON_CHARACTERS] or line
    return ""
