"""The Linear layers that multiply in float8; apart from the rest because they need torchao."""

from dataclasses import fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torchao.float8 import Float8LinearConfig, float8_linear
from torchao.float8.config import CastConfig

from amptui.engine.float8 import FORM_MARK

_OCP_FORMATS = {
    torch.float8_e4m3fnuz: torch.float8_e4m3fn,
    torch.float8_e5m2fnuz: torch.float8_e5m2,
}
"""The formats of AMD's MI300, and those of all other hardware (OCP 8-bit Floating Point Specification)."""


def with_ocp_formats(config: Float8LinearConfig) -> Float8LinearConfig:
    """The same recipe in OCP's formats: on an MI300 torchao chooses AMD's older ones."""
    casts = {field.name: getattr(config, field.name) for field in fields(config)}
    return replace(
        config,
        **{
            name: replace(cast, target_dtype=_OCP_FORMATS.get(cast.target_dtype, cast.target_dtype))
            for name, cast in casts.items()
            if isinstance(cast, CastConfig)
        },
    )


@torch.compiler.allow_in_graph  # as torchao's own: Dynamo would not trace its casts
class _Product(float8_linear.matmul_with_hp_or_float8_args):
    """torchao's product, and a second derivative: where one is taken, its gradients are not in float8."""

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        if not torch.is_grad_enabled():  # no create_graph=True
            of_float8: Any = float8_linear.matmul_with_hp_or_float8_args.backward(ctx, grad_output)
            return of_float8  # type: ignore[no-any-return]
        inputs, weight_t = ctx.saved_tensors
        rows = grad_output.reshape(-1, grad_output.shape[-1])
        grad_input = (rows @ weight_t.t().to(rows.dtype)).reshape(inputs.shape)
        grad_weight_t = inputs.reshape(-1, inputs.shape[-1]).t().to(rows.dtype) @ rows
        return grad_input, grad_weight_t, None, None


class Float8Linear(float8_linear.Float8Linear):
    """torchao's layer, for as long as the run is in FP8, in every call that autocast would make bfloat16.

    Whatever a plain layer accepts, it accepts: calls that torchao would refuse are the plain layer's, and so
    is a call out of autocast, where a script wants float32. Each change from torchao's own ``forward()`` is
    for something that training scripts do and that would end there.
    """

    own_class: ClassVar[type["Float8Linear"] | None] = None
    """The class that is given to layers, and taken from them: one derived from it (as parametrizing a layer
    does) stays with its layer, also after FP8."""

    is_rowwise: ClassVar[bool] = False
    """Whether each row of the input has a scale of its own."""

    def takes(self, input: Tensor) -> bool:  # noqa: A002 - as nn.Linear calls it
        """Whether a call with ``input`` multiplies in float8."""
        if type(self) is not self.own_class or not torch.is_autocast_enabled(input.device.type):
            return False
        if not input.numel():  # an expert's without a token, say: there is no largest value to scale by
            return False
        return torch.compiler.is_compiling() or _is_ordinary(input)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as nn.Linear calls it
        # A wrapper that kept this method may call it after FP8.
        if not isinstance(self, Float8Linear) or not self.takes(input):
            return nn.Linear.forward(self, input)
        if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():
            return self._multiply(input)
        # Casts of the weight there are not those that torchao knows.
        with torch.inference_mode(mode=False), torch.no_grad():
            return self._multiply(input)

    def _multiply(self, input: Tensor) -> Tensor:  # noqa: A002
        rounded = input.to(torch.get_autocast_dtype(input.device.type))
        if self.is_rowwise:
            rounded = rounded.contiguous()  # torchao copies a transposed one as if it had a single scale
        output: Tensor = self._product(rounded)
        if self.bias is not None:
            biased: Tensor = output + self.bias.to(output.dtype)
            return biased
        # The output of an autograd.Function that is a view cannot be changed in place.
        unshared: Tensor = torch.ops.aten._unsafe_view(output, output.shape)
        return unshared

    def _product(self, rounded: Tensor) -> Tensor:
        product: Tensor = _Product.apply(rounded, self.weight.t(), self.linear_mm_config, self.config)
        return product

    def __reduce_ex__(self, _protocol: object) -> tuple[Any, ...]:
        """What is copied or saved whole is a plain Linear layer: nothing would lead it out of FP8 again."""
        plain = {name: value for name, value in vars(self).items() if name != FORM_MARK}
        return nn.Linear, (1, 1, False, "meta"), plain  # on "meta" no random numbers are drawn


class EmulatedFloat8Linear(Float8Linear):
    """The same, as it computes on a GPU, wherever autocast runs.

    Autocast would also round the emulated product's operands, already in float8's numbers, to bfloat16, which
    the hardware does not.
    """

    def _product(self, rounded: Tensor) -> Tensor:
        with torch.autocast(rounded.device.type, enabled=False):
            return super()._product(rounded)


def _is_ordinary(tensor: Tensor) -> bool:
    """Whether ``tensor`` is only that: nothing that divides, nests or differentiates it in its own way."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and not tensor.is_nested
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and forward_ad._current_level < 0
    )
