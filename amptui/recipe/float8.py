"""Float8 for the Linear layers of a model: which can take part, and their change to it and back.

The layers stay the objects that they are, with their parameters, hooks and names: only their class changes,
to torchao's subclass of ``nn.Linear``. So whatever holds on to a module or a parameter (optimizer, probes,
compiled code, a list of the model's own) notices nothing, and leaving float8 leaves no trace.
"""

import importlib.util
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from amptui.base.text import one_line
from amptui.device.accelerator import capabilities, properties
from amptui.recipe.sharding import is_sharded
from amptui.records.findings import Float8Layers, FloatHindrance, LayerLeftOut

MARK = "_amptui_float8"
"""An attribute of each layer in float8. Compiled code of the layer's own class is not used for it by that:
Dynamo looks at the attributes of a layer, and in torch 2.9 not at its class."""

MAX_NAMES = 64
"""Layers that a record names."""

NO_LAYER = "the model has no plain nn.Linear whose sizes are both divisible by 16"

NO_SHARDS = "its weights are divided among ranks, and float8 layers need them whole"

NO_TORCHAO = "torchao is not installed: pip install 'amptui[fp8]'"

OWN_FLOAT8 = "layers of the model are torchao's float8 layers already"

_MIN_CAPABILITY = (8, 9)
"""The first with Tensor Cores for float8: Ada, then Hopper (CUDA C++ Programming Guide)."""

_ALIGNMENT = 16
"""cuBLAS multiplies float8 matrices only if rows and columns are multiples of 16 bytes."""

_WEIGHT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Those that autocast makes bfloat16: it leaves float64 alone."""


def why_no_float8(device: torch.device) -> dict[str, str]:
    """``fp8`` with a short reason if ``device`` does not support it; no model is asked."""
    if importlib.util.find_spec("torchao") is None:
        return {"fp8": NO_TORCHAO}
    if not capabilities(device).float8:
        return {"fp8": "amptui's FP8 needs an NVIDIA GPU or a CPU"}
    facts = properties(device)
    if device.type == "cpu" or (facts.compute_capability or (0, 0)) >= _MIN_CAPABILITY:
        return {}
    return {"fp8": f"{facts.name} does not multiply float8, which needs compute capability 8.9"}


def float8_linears(
    model: nn.Module | Mapping[str, nn.Module], unsupported: Mapping[str, str]
) -> tuple["Float8Linears | None", dict[str, str]]:
    """What can multiply in float8 here, None if nothing; and ``unsupported`` with this model's reasons."""
    if "fp8" in unsupported:
        return None, dict(unsupported)
    linears = Float8Linears(model)
    if not linears.hindrance:
        return linears, dict(unsupported)
    return None, {**unsupported, "fp8": linears.hindrance}


def is_float8_layer(module: object) -> bool:
    """Whether ``module`` is one of torchao's layers for training in float8.

    Imports nothing, and calls no code of the module's.
    """
    kind = getattr(sys.modules.get("torchao.float8.float8_linear"), "Float8Linear", None)
    return kind is not None and issubclass(type(module), kind)


def has_float8_layers(model: nn.Module) -> bool:
    """Whether any layer of ``model`` is one."""
    return any(map(is_float8_layer, model.modules()))


class Float8Linears:
    """The Linear layers of ``model`` that can multiply in float8, and what the others lack.

    Float8 products need both sizes of the weight to be multiples of 16. A subclass of ``nn.Linear`` and a
    layer with a ``forward`` of its own may compute something else: these stay as they are.

    Of several models, ``model`` is a mapping of names, with which those of their layers begin.
    """

    def __init__(self, model: nn.Module | Mapping[str, nn.Module]) -> None:
        self.linears: dict[str, nn.Linear] = {}
        self.left_out: list[LayerLeftOut] = []
        self.hindrance = ""
        """Why nothing can multiply in float8; empty if something can."""
        self._models = dict(model) if isinstance(model, Mapping) else {"": model}
        self._float8_class: type[nn.Linear] | None = None
        self.is_on: bool | None = False
        """Whether they multiply in float8 now; None if an error of a signal handler ended a change."""
        self._look_for_layers()

    def prepare(self) -> str:
        """Import torchao, which takes seconds; return why that fails, in a line.

        Layers that the models have got since are looked for.
        """
        if not self.is_on:
            self._look_for_layers()
        if self.hindrance or self._float8_class is not None:
            return self.hindrance
        try:
            # Importing torchao tells of deprecations between it and torch (torch 2.13 and torchao 0.18), and
            # of extensions that were built for another torch, which float8 training does not use.
            with quiet_loggers("torch.utils._pytree", "torchao"):
                layer_class = _float8_class()
            _try_once(layer_class, next(iter(self.linears.values())).weight.device)
            self._float8_class = layer_class
        except Exception as error:  # noqa: BLE001 - a torchao of another torch may raise anything
            return one_line(f"torchao cannot be used: {type(error).__name__}: {error}")
        return ""

    def become(self, *, on: bool) -> None:
        """Multiply in float8 from the next call on, for which it must have been prepared, or no longer."""
        on = on and not self.hindrance
        if on is self.is_on:
            return
        self.is_on = None
        kind = self._float8_class if on else nn.Linear
        assert kind is not None, "it has been prepared"
        for linear in self.linears.values():
            linear.__dict__.pop(MARK, None)
            if type(linear) in (nn.Linear, self._float8_class):  # else a script has made something else of it
                linear.__class__ = kind
                if on:
                    linear.__dict__[MARK] = True
        self.is_on = on

    def follow(self, models: Mapping[str, nn.Module]) -> bool:
        """Take the layers of ``models`` from now on; others, if there are any, leave float8.

        Returns whether these are other models.
        """
        if models.keys() == self._models.keys() and all(
            models[name] is model for name, model in self._models.items()
        ):
            return False
        was_on = bool(self.is_on)
        self.become(on=False)
        self._models = dict(models)
        self._look_for_layers()
        self.become(on=was_on)
        return True

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Within it the layers may change as they like; afterwards they multiply as before."""
        before = bool(self.is_on)
        try:
            yield
        finally:
            self.become(on=before)

    def record(self, *, step: int, precision: str) -> Float8Layers:
        """What takes part, as ``precision`` begins with ``step``."""
        parameters = {parameter for linear in self.linears.values() for parameter in linear.parameters()}
        return Float8Layers(
            time=time.time(),
            step=step,
            precision=precision,
            layers=len(self.linears),
            names=tuple(self.linears)[:MAX_NAMES],
            parameters=sum(parameter.numel() for parameter in parameters),
            left_out=tuple(self.left_out[:MAX_NAMES]),
            left_out_count=len(self.left_out),
        )

    def _look_for_layers(self) -> None:
        self.linears, self.left_out = {}, []
        visited: set[nn.Module] = set()
        for prefix, model in self._models.items():
            for name, module in model.named_modules(visited, prefix):
                weights = [p for p in module.parameters(recurse=False) if not is_lazy(p) and p.ndim > 1]
                if not weights or isinstance(module, nn.Embedding | nn.EmbeddingBag):
                    continue  # without a matrix of its own it multiplies nothing
                hindrance = _hindrance(module)
                if hindrance is None:
                    assert isinstance(module, nn.Linear)
                    self.linears[name] = module
                    continue
                kind, shape = type(module).__name__, tuple(max(weights, key=Tensor.numel).shape)
                self.left_out.append(LayerLeftOut(name=name, kind=kind, why=hindrance, shape=shape))
        models = self._models.values()
        if any(map(has_float8_layers, models)):
            self.hindrance = OWN_FLOAT8
        elif any(map(is_sharded, models)):
            self.hindrance = NO_SHARDS
        else:
            self.hindrance = "" if self.linears else NO_LAYER


def torchao_trouble() -> str:
    """Why torchao cannot make float8 layers here, in a line; empty if it can. Importing it takes seconds."""
    return Float8Linears(nn.Linear(_ALIGNMENT, _ALIGNMENT)).prepare()


def _hindrance(module: nn.Module) -> FloatHindrance | None:
    if not isinstance(module, nn.Linear):
        return "kind"
    if type(module) is not nn.Linear:
        return "subclass"
    if "forward" in vars(module):
        return "forward"
    weight = getattr(module, "weight", None)
    if type(weight) is not nn.Parameter or weight.dtype not in _WEIGHT_DTYPES:
        return "weight"
    rows, columns = weight.shape
    return "size" if rows % _ALIGNMENT or columns % _ALIGNMENT or not rows * columns else None


@contextmanager
def quiet_loggers(*names: str) -> Iterator[None]:
    """Within it these log no advice to their developers, which would come among the output of the script."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _float8_class() -> type[nn.Linear]:
    """Torchao's layer, for as long as the run is in FP8, in every call that autocast would make bfloat16."""
    from torchao.float8 import Float8LinearConfig
    from torchao.float8.float8_linear import Float8Linear as Layer

    # One scale a tensor. A step's last batch may have any number of rows, which are the inner size of the
    # weight's gradient.
    config = Float8LinearConfig(pad_inner_dim=True)

    class Float8Linear(Layer):  # type: ignore[misc]  # torchao has no types
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as nn.Linear calls it
            kind = input.device.type
            # After FP8 a subclass that the script derived, or a method that it kept, is still called. An
            # expert may get no token: there is no largest value to scale by.
            is_compiling = torch.compiler.is_compiling()
            if (
                type(self) is not Float8Linear
                or not torch.is_autocast_enabled(kind)
                or not input.numel()
                or not (is_compiling or _is_ordinary(input))
            ):
                return nn.Linear.forward(self, input)
            if not is_compiling and torch.is_inference_mode_enabled():
                # There torchao's casts are taken apart.
                with torch.inference_mode(mode=False), torch.no_grad():
                    return self.forward(input)
            # torchao scales no transposed rows, and knows CUDA's autocast alone.
            rounded = input.to(torch.get_autocast_dtype(kind)).contiguous()
            with torch.autocast(kind, enabled=False):
                output: Tensor = Layer.forward(self, rounded)
            # The output of an autograd.Function that is a view cannot be changed in place.
            unshared: Tensor = torch.ops.aten._unsafe_view(output, output.shape)
            return unshared

        def __reduce_ex__(self, _protocol: object) -> tuple[Any, ...]:
            """What is copied or saved is a plain Linear layer: nothing would lead it out of FP8 again."""
            plain = {name: value for name, value in vars(self).items() if name != MARK}
            return nn.Linear, (1, 1, False, "meta"), plain  # on "meta" no random numbers are drawn

    # What torchao adds to its layers becomes the class's, so that a layer keeps its own attributes.
    plain = nn.Linear(_ALIGNMENT, _ALIGNMENT, device="meta")  # which draws no random numbers
    converted = Layer(_ALIGNMENT, _ALIGNMENT, device="meta", config=config)
    for name in vars(converted).keys() - vars(plain).keys():
        setattr(Float8Linear, name, vars(converted)[name])
    return Float8Linear


def _is_ordinary(tensor: Tensor) -> bool:
    """Whether it is no nested tensor and none of ``torch.func``'s, which torchao does not multiply."""
    return not (tensor.is_nested or torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def _try_once(layer_class: type[nn.Linear], device: torch.device) -> None:
    """Multiply once, forward and backward: what this device or torch refuses, it refuses in no step.

    Without a call of a module or of ``backward()``: whoever watches those of a script sees none of ours.
    """
    layer = nn.Linear(_ALIGNMENT, _ALIGNMENT, bias=False, device="meta")
    layer.weight = nn.Parameter(torch.ones(_ALIGNMENT, _ALIGNMENT, device=device))
    layer.__class__ = layer_class
    rows = torch.ones(_ALIGNMENT, _ALIGNMENT, device=device, requires_grad=True)
    with torch.enable_grad(), torch.autocast(device.type, dtype=torch.bfloat16):
        outputs = layer_class.forward(layer, rows)
        torch.autograd.grad(outputs, (rows, layer.weight), torch.ones_like(outputs))
