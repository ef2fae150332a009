"""The X-ray: one batch in FP32 and in AMP from the same weights and random state, neither applied."""

import copy
import time
import traceback
import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from amptui.engine.failure import is_out_of_memory
from amptui.engine.precision import Precision, Tf32Flags
from amptui.engine.probes.agreement import Gradients, agreements, layer_sums, layers_of, on_host
from amptui.engine.probes.operators import OperatorCounter, dtype_name, tensors_in
from amptui.engine.setup import Prepared
from amptui.engine.snapshot import Snapshot
from amptui.engine.validation import checked_loss
from amptui.findings import XRayTaken


def take_xray(
    prepared: Prepared, batch: Any, *, step: int, precision: str, loss_scale: float | None
) -> XRayTaken:
    """Forward and backward of ``batch`` in ``ieee`` and then in ``precision`` (``fp16`` or ``bf16``).

    To be called between two steps, by the thread that trains. The AMP loss is multiplied by ``loss_scale``
    if there is one; the scaler itself is not touched. Compiled models run eagerly: compiled code hides its
    modules and operators, and would be compiled anew for other precision flags.

    Weights, optimizer, scaler, gradients, buffers, random generators, flags and modes are afterwards bit for
    bit what they were, also when something raised. It raises what the loss raises, and when memory runs out,
    which it does earlier than in a step: two passes' gradients are held beside those of the last step.
    What a model or a loss keeps in plain Python objects is not undone, but for the experiment's attributes.
    """
    began = time.perf_counter()
    with _returning_memory(), _restoring(prepared) as snapshot:
        found = _both_passes(prepared, batch, snapshot, precision=precision, loss_scale=loss_scale)
    return replace(found, time=time.time(), step=step, seconds=time.perf_counter() - began)


def _both_passes(
    prepared: Prepared, batch: Any, snapshot: Snapshot, *, precision: str, loss_scale: float | None
) -> XRayTaken:
    """The X-ray without when and how long."""
    model = prepared.model
    layers = layers_of(model)
    full = _run_pass(prepared, _copied(batch), prepared.precisions["ieee"], None)
    random = snapshot.drawn or _has_recurrent_dropout(model)
    snapshot.restore()
    own_batch, counter = _copied(batch), OperatorCounter()
    with _output_dtypes(model) as dtypes, counter:
        half = _run_pass(prepared, own_batch, prepared.precisions[precision], loss_scale)
    in_threads = _runs_in_threads(model)
    sums = layer_sums(layers, full.gradients, half.gradients, loss_scale=loss_scale or 1.0)
    (loss_fp32,), (loss_amp,), *rows = on_host([full.loss, half.loss, *sums])
    return XRayTaken(
        time=0.0,
        step=0,
        precision=precision,
        loss_scale=loss_scale,
        loss_fp32=loss_fp32,
        loss_amp=loss_amp,
        layers=agreements(layers, rows, full.gradients, half.gradients, output_dtypes=dtypes),
        operators=() if in_threads else counter.counts(),
        output_dtypes=dtypes,
        weights_bytes=_bytes(model.parameters()),
        gradients_bytes=_bytes(full.gradients.values()),
        optimizer_bytes=_bytes(tensors_in(prepared.optimizer.state)),
        buffers_bytes=_bytes(model.buffers()),
        saved_bytes_fp32=None if in_threads else full.saved_bytes,
        saved_bytes_amp=None if in_threads else half.saved_bytes,
        random=random,
        seconds=0.0,
    )


# ---------------------------------------------------------------------------------- one pass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Pass:
    loss: Tensor
    gradients: Gradients
    """Multiplied by the loss scale."""
    saved_bytes: int


def _run_pass(prepared: Prepared, batch: Any, precision: Precision, loss_scale: float | None) -> _Pass:
    """Forward and backward as a step of ``precision`` does it; takes the gradients off the parameters."""
    experiment = copy.copy(prepared.experiment)  # it may count its calls
    everything = _modules(prepared)
    precision.enter()
    with _saved_tensors() as saved, precision.forward_context():
        loss, _ = checked_loss(experiment, experiment.loss(prepared.model, batch))
    owned = (*everything.parameters(), *everything.buffers(), *tensors_in(batch))
    saved_bytes = _saved_bytes(saved, owned)
    (loss if loss_scale is None else loss.float() * loss_scale).backward()
    gradients: dict[Tensor, Tensor] = {}
    for parameter in _parameters(prepared):
        if parameter.grad is not None:
            gradients[parameter], parameter.grad = parameter.grad, None
    return _Pass(loss=loss.detach(), gradients=gradients, saved_bytes=saved_bytes)


def _copied(batch: Any) -> Any:
    """The same nest, for a loss to write into; what is in it twice is in it twice again."""
    # copy.deepcopy would copy the whole storage that a tensor is a view of, a data set maybe.
    memo: dict[int, Any] = {
        id(tensor): tensor.detach().clone().requires_grad_(tensor.requires_grad)
        for tensor in tensors_in(batch)
    }
    return copy.deepcopy(batch, memo)


@contextmanager
def _output_dtypes(model: nn.Module) -> Iterator[dict[str, str]]:
    """Note what each module puts out: the dtype of the first tensor of its last call."""
    dtypes: dict[str, str] = {}

    def note(name: str, _module: nn.Module, _args: object, output: object) -> None:
        first = next(tensors_in(output), None)
        if first is not None:
            dtypes[name] = dtype_name(first.dtype)

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.callback(module.register_forward_hook(partial(note, name)).remove)
        yield dtypes


# ------------------------------------------------------------------------------------ memory


@contextmanager
def _saved_tensors() -> Iterator[list[weakref.ref[Tensor]]]:
    """Note the tensors that autograd saves; a reference is dead when the backward pass will not need it."""
    saved: list[weakref.ref[Tensor]] = []

    def pack(tensor: Tensor) -> Tensor:
        kept = tensor.detach()  # the tensor itself would make a cycle with the node that it came from
        saved.append(weakref.ref(kept))
        return kept

    with saved_tensors_hooks(pack, lambda kept: kept):
        yield saved


def _saved_bytes(saved: Iterable[weakref.ref[Tensor]], owned: Iterable[Tensor]) -> int:
    """The storages behind ``saved``, each once, without those of ``owned``."""
    alive = [tensor for reference in saved if (tensor := reference()) is not None]
    storages = _storages(alive)
    for address in _storages(owned):
        storages.pop(address, None)
    return sum(storages.values())


def _storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Address and bytes of what ``tensors`` lie in."""
    parts = (part.untyped_storage() for tensor in tensors for part in _parts(tensor))
    return {storage.data_ptr(): storage.nbytes() for storage in parts}


def _bytes(tensors: Iterable[Tensor]) -> int:
    """What all of them take, each counted once."""
    unique = {id(tensor): tensor for tensor in tensors}
    return sum(part.nbytes for tensor in unique.values() for part in _parts(tensor))


def _parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """The tensors that a sparse one is made of, or itself."""
    return (tensor._indices(), tensor._values()) if tensor.is_sparse else (tensor,)


# -------------------------------------------------------------------------- as if nothing had been


@contextmanager
def _restoring(prepared: Prepared) -> Iterator[Snapshot]:
    """Set gradients aside; afterwards put back whatever two passes may have changed."""
    everything, flags = _modules(prepared), Tf32Flags.current()
    training = [(module, module.training) for module in everything.modules()]
    parameters = [(p, p.grad, p.requires_grad) for p in _parameters(prepared)]
    snapshot = Snapshot.take(everything, prepared.device)
    try:
        for parameter, _, _ in parameters:
            parameter.grad = None
        with torch.compiler.set_stance("force_eager"):
            yield snapshot
    finally:
        for parameter, gradient, requires_grad in parameters:
            parameter.requires_grad_(requires_grad).grad = gradient
        for module, was_training in training:
            module.training = was_training
        flags.apply()
        snapshot.restore()


@contextmanager
def _returning_memory() -> Iterator[None]:
    """When memory ran out, drop what the interrupted frames hold and give the device its memory back."""
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error):
            traceback.clear_frames(error.__traceback__)
            torch.cuda.empty_cache()  # does nothing where CUDA is not in use
        raise


def _modules(prepared: Prepared) -> nn.Module:
    """The model and the modules that the experiment holds: a teacher, a loss with weights."""
    held = (value for value in vars(prepared.experiment).values() if isinstance(value, nn.Module))
    return nn.ModuleList([prepared.model, *held])


def _parameters(prepared: Prepared) -> list[nn.Parameter]:
    """Everything that a backward pass may leave a gradient at, each once."""
    groups = prepared.optimizer.param_groups
    optimized = (parameter for group in groups for parameter in group["params"])
    return list(dict.fromkeys((*_modules(prepared).parameters(), *optimized)))


# ----------------------------------------------------------------------------- kinds of models


def _has_recurrent_dropout(model: nn.Module) -> bool:
    """Active dropout between the layers of an RNN, whose masks cuDNN draws from a state of its own."""
    return any(
        isinstance(module, nn.RNNBase) and module.training and module.dropout > 0 and module.num_layers > 1
        for module in model.modules()
    )


def _runs_in_threads(model: nn.Module) -> bool:
    """Whether replicas run in threads, of which hooks and counters of this thread know nothing."""
    return any(
        isinstance(module, nn.DataParallel) and len(module.device_ids) > 1 for module in model.modules()
    )
