"""The lines to paste for a precision: in plain PyTorch, in the frameworks, and for amptui itself."""

from collections.abc import Mapping
from dataclasses import dataclass

from amptui.recipe.request import Framework

NAMES: Mapping[Framework, str] = {
    "pytorch": "PyTorch",
    "lightning": "Lightning",
    "accelerate": "Accelerate",
    "huggingface": "Hugging Face",
    "amptui": "amptui",
}

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp8": "bfloat16"}

_FLOAT8 = (
    "from torchao.float8 import Float8LinearConfig, convert_to_float8_training",
    "def takes_part(layer, name):",
    "    sizes = layer.in_features, layer.out_features",
    "    return type(layer) is torch.nn.Linear and all(size % 16 == 0 for size in sizes)",
    "config = Float8LinearConfig(pad_inner_dim=True)",
    "convert_to_float8_training(model, config=config, module_filter_fn=takes_part)",
)
"""The layers that amptui takes, in torchao's own words."""

_COMPILE = "model = torch.compile(model)"

_ALLOW_TF32 = (
    'torch.backends.cuda.matmul.fp32_precision = "tf32"',
    'torch.backends.cudnn.fp32_precision = "tf32"',
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the lines are for."""

    precision: str
    device_type: str
    """As ``torch.autocast`` takes it."""
    command: str = ""
    """The command line that trains so; empty for a script, whose own code has to change."""
    clip_norm: float | None = None
    compiles: bool = False


def lines_for(setting: Setting) -> Mapping[Framework, tuple[str, ...]]:
    """The lines by framework; none where nothing has to be changed, as for FP32 that is not compiled."""
    if setting.precision == "fp32":
        lines: dict[Framework, tuple[str, ...]] = {"pytorch": (_COMPILE,)} if setting.compiles else {}
        return lines
    lines = dict(_half(setting) if setting.precision in _DTYPES else _tf32(setting))
    if setting.command:
        lines["amptui"] = (setting.command,)
    return lines


def _half(setting: Setting) -> Mapping[Framework, tuple[str, ...]]:
    if setting.precision == "fp8":  # frameworks choose other layers, or another library
        return {"pytorch": _pytorch(setting)}
    number = setting.precision.removeprefix("fp")
    return {
        "pytorch": _pytorch(setting),
        "lightning": (f'Trainer(precision="{number}-mixed")',),
        "accelerate": (f'Accelerator(mixed_precision="{setting.precision}")',),
        "huggingface": (f"TrainingArguments({setting.precision}=True)",),
    }


def _tf32(setting: Setting) -> Mapping[Framework, tuple[str, ...]]:
    return {
        "pytorch": (*_ALLOW_TF32, *[_COMPILE] * setting.compiles),
        "lightning": _ALLOW_TF32,
        "accelerate": _ALLOW_TF32,
        "huggingface": ("TrainingArguments(tf32=True)",),
    }


def _pytorch(setting: Setting) -> tuple[str, ...]:
    """A training loop as in PyTorch's documentation."""
    device, scales = setting.device_type, setting.precision == "fp16"
    lines = [*_FLOAT8] if setting.precision == "fp8" else []
    lines += [_COMPILE] * setting.compiles
    lines += [f'scaler = torch.amp.GradScaler("{device}")'] * scales
    lines += [
        "for inputs, targets in batches:",
        "    optimizer.zero_grad()",
        f'    with torch.autocast("{device}", dtype=torch.{_DTYPES[setting.precision]}):',
        "        loss = loss_function(model(inputs), targets)",
        "    scaler.scale(loss).backward()" if scales else "    loss.backward()",
    ]
    if setting.clip_norm is not None:
        lines += ["    scaler.unscale_(optimizer)"] * scales
        lines.append(f"    torch.nn.utils.clip_grad_norm_(model.parameters(), {setting.clip_norm:g})")
    lines += ["    scaler.step(optimizer)", "    scaler.update()"] if scales else ["    optimizer.step()"]
    return tuple(lines)
