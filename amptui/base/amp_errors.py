"""What torch's own errors about mixed precision mean: a cause in a few words, and the line that fixes it.

The messages are those of torch 2.4 to 2.14, on a CPU and on CUDA; several spellings of one fault share a row.
"""

import re

_LOW = r"\b(Half|BFloat16|float16|bfloat16)\b"

_UNSCALE = "scaler.unscale_(optimizer); clip_grad_norm_(...); scaler.step(optimizer); scaler.update()"

_STEP = "scaler.step(optimizer); scaler.update()"

_IN_FLOAT32 = "with torch.autocast(device_type, enabled=False): y"

AMP_ERRORS = {
    r"unscale_\(\) has already been called": f"unscale_() ran twice before update(): {_UNSCALE}",
    r"unscale_\(\) is being called after step": f"unscale_() must come before step(): {_UNSCALE}",
    r"step\(\) has already been called since": f"update() is missing between two calls of step(): {_STEP}",
    r"No inf checks were recorded for this optimizer":
        "no parameter of this optimizer has a gradient: "
        "scaler.scale(loss).backward() # before step(), with an optimizer of this model's parameters",
    r"No inf checks were recorded prior to update": f"update() ran without a step(): {_STEP}",
    r"Attempting to unscale FP16 gradients":
        "the parameters are float16, and a GradScaler needs float32 ones: "
        "model.float() # and run the forward pass under torch.autocast",
    r"_scale is None": "the scaler has not scaled a loss yet: scaler.scale(loss).backward()",
    r"source state dict is empty.*disabled instance of GradScaler":
        "the checkpoint was saved with the scaler disabled: "
        'if state["scaler"]: scaler.load_state_dict(state["scaler"])',
    r"binary_cross_entropy.*unsafe to autocast":
        "a probability rounded to float16 has no safe logarithm: "
        "loss = BCEWithLogitsLoss()(logits, target) # without the sigmoid",
    r"ComplexHalf|[cC]omplex<c10::Half>|MKL FFT doesn't support tensors of type|"
    rf"(view_as_complex|Expected both inputs to be Half, Float or Double).*{_LOW}":
        "torch has few operations on complex numbers of 16-bit floats: "
        f"{_IN_FLOAT32} = torch.fft.rfft(x.float())",
    r"unscale.* not implemented for 'Complex(Float|Double)'":
        "a GradScaler cannot unscale complex gradients: give complex parameters an optimizer of their own, "
        "without the scaler: loss.backward(); optimizer.step()",
    rf"not implemented for '(Half|BFloat16)'|Unsupported dtype {_LOW}|Low precision dtypes not supported|"
    rf"{_LOW}.*expected a tensor .*float, double":
        f"this operation does not exist in 16 bits on this device: {_IN_FLOAT32} = operation(x.float())",
    r"unsupported ScalarType BFloat16": "NumPy has no bfloat16: array = x.detach().float().cpu().numpy()",
    r"cannot be converted to type (at|c10)::(Half|BFloat16) without overflow":
        "the constant is out of the range of the 16-bit type: "
        "scores.masked_fill(mask, torch.finfo(scores.dtype).min)",
    rf"((Index put|index_\w+\(\)|masked_scatter|put_\(\)|masked_fill).*{_LOW})|"
    r"scatter\(\): Expected self\.dtype to be equal to src\.dtype":
        "values are written into a tensor of another dtype, which autocast does not cast: "
        "out[index] = values.to(out.dtype)",
    rf"Found dtype .*{_LOW}":
        "the loss mixes float32 with a 16-bit type: loss = criterion(output.float(), target.float())",
    r"could not create a primitive descriptor for the (LSTM|GRU|RNN)":
        "perhaps the carried state has another dtype than the input: "
        "state = tuple(part.detach().to(x.dtype) for part in state)",
    r"both Float8TrainingTensor for mm inputs":
        "a float8 layer has no second derivative: train in bf16 where gradients are differentiated again",
    rf"(expected scalar type|same d?type|dtypes must be the same|attn_mask dtype|expected dtype|"
    rf"must have the type|Expected out tensor).*{_LOW}|"
    rf"{_LOW}.*(should be the same|not match weight dtype)|mixed dtype \(CPU\)":
        "a float32 and a 16-bit tensor meet where autocast is off or does not cast: "
        "with torch.autocast(device_type): output = model(x) # or x.to(weight.dtype)",
}  # fmt: skip
"""Advice by what is searched for in the message; the first row counts."""


def known_hint(message: str) -> tuple[str, str]:
    """The part of an error's ``message`` to show and its hint; the whole message and "" if none is known.

    Autocast rejects ``binary_cross_entropy`` in five lines (``ATen/autocast_mode.cpp``): one is enough.
    """
    message = " ".join(message.split())
    hint = next((hint for pattern, hint in AMP_ERRORS.items() if re.search(pattern, message)), "")
    before, refused, _ = message.partition("unsafe to autocast")
    return (before + refused if hint else message), hint
