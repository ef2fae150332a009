"""What to paste: the command line, or the lines of a training loop, for a precision."""

import shlex
from collections.abc import Mapping
from dataclasses import fields

from amptui.base.masking import masked
from amptui.recipe.request import AdviseRequest, TrainRequest, option_of
from amptui.records.run import AMP_PRECISIONS
from amptui.runs.rundir import default_data_dir

NAMES: Mapping[str, str] = {
    "pytorch": "PyTorch",
    "lightning": "Lightning",
    "accelerate": "Accelerate",
    "huggingface": "Hugging Face",
    "amptui": "amptui",
}
"""Of what there are lines for, in this order."""

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


def train_command(request: AdviseRequest, precision: str) -> str:
    """The command line that trains the same model in ``precision``, with all its options."""
    training = request.training
    usual = TrainRequest(model=training.model, settings=training.settings)
    words = ["amptui", "train", training.model, "--precision", precision]
    for name in (field.name for field in fields(training)):
        value = getattr(training, name)
        if value not in (getattr(usual, name), default_data_dir()):
            words += [option_of(name)] if value is True else [option_of(name), str(value)]
    for name, text in training.settings.items():
        words += ["--set", masked(f"{name}={text}")]  # it stands on a page, too
    return shlex.join(words)


def lines_for(
    precision: str,
    device_type: str,
    *,
    command: str = "",
    clip_norm: float | None = None,
    compiles: bool = False,
) -> Mapping[str, tuple[str, ...]]:
    """The lines by framework; none where nothing has to be changed, as for FP32 that is not compiled.

    ``device_type`` is as ``torch.autocast`` takes it; ``command`` the command line that trains so, empty for
    a script, whose own code has to change.
    """
    compiled = (_COMPILE,) if compiles else ()
    lines: dict[str, tuple[str, ...]] = {}
    if precision in _DTYPES:
        lines["pytorch"] = _pytorch(precision, device_type, clip_norm, compiled)
    elif compiled or precision == "tf32":
        lines["pytorch"] = (*(_ALLOW_TF32 if precision == "tf32" else ()), *compiled)
    if precision in AMP_PRECISIONS:
        lines |= {
            "lightning": (f'Trainer(precision="{precision.removeprefix("fp")}-mixed")',),
            "accelerate": (f'Accelerator(mixed_precision="{precision}")',),
            "huggingface": (f"TrainingArguments({precision}=True)",),
        }
    elif precision == "tf32":
        lines |= dict.fromkeys(("lightning", "accelerate"), _ALLOW_TF32)
        lines["huggingface"] = ("TrainingArguments(tf32=True)",)
    # FP8 has no lines for frameworks: they choose other layers, or another library.
    if command and precision != "fp32":
        lines["amptui"] = (command,)
    return lines


def _pytorch(
    precision: str, device: str, clip_norm: float | None, compiled: tuple[str, ...]
) -> tuple[str, ...]:
    """A training loop as in PyTorch's documentation."""
    scales = precision == "fp16"
    lines = [*(_FLOAT8 if precision == "fp8" else ()), *compiled]
    lines += [f'scaler = torch.amp.GradScaler("{device}")'] * scales
    lines += [
        "for inputs, targets in batches:",
        "    optimizer.zero_grad()",
        f'    with torch.autocast("{device}", dtype=torch.{_DTYPES[precision]}):',
        "        loss = loss_function(model(inputs), targets)",
        "    scaler.scale(loss).backward()" if scales else "    loss.backward()",
    ]
    if clip_norm is not None:
        lines += ["    scaler.unscale_(optimizer)"] * scales
        lines.append(f"    torch.nn.utils.clip_grad_norm_(model.parameters(), {clip_norm:g})")
    lines += ["    scaler.step(optimizer)", "    scaler.update()"] if scales else ["    optimizer.step()"]
    return tuple(lines)
