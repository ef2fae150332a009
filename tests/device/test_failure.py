"""Why a training could not go on, in one line: what was raised, where, and what was being done."""

import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from amptui.base.errors import AmptuiError, DataError, DeviceError
from amptui.device.failure import explain


def caught(kind: type[Exception], code: Callable[[], object]) -> Exception:
    with pytest.raises(kind) as explained:
        code()
    return explained.value


def line_of(code: str) -> int:
    """Where ``code`` stands in this file."""
    source = Path(__file__).read_text().splitlines()
    return 1 + next(i for i, line in enumerate(source) if line.strip() == code)


def sentence_of(error: BaseException, batch_size: int | None = 8) -> str:
    return str(explain(error, doing="in step 5", batch_size=batch_size))


def raise_here() -> None:
    raise ValueError("bad\n  label")


def test_the_innermost_line_of_the_user_s_code_is_named() -> None:
    error = caught(IndexError, lambda: functional.cross_entropy(torch.zeros(2, 3), torch.tensor([0, 7])))
    assert "cross_entropy" in traceback.format_exception(error)[-2]  # raised within torch
    assert f"({__file__}:" in sentence_of(error)
    where = line_of('raise ValueError("bad\\n  label")')
    said = f"ValueError: bad label ({__file__}:{where}, in step 5)"
    assert sentence_of(caught(ValueError, raise_here)) == said


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("weights"), "KeyError: 'weights' (in step 5)"),
        (AssertionError(), "AssertionError (in step 5)"),
        (SystemExit("the model left"), "SystemExit: the model left (in step 5)"),
        (KeyboardInterrupt(), "KeyboardInterrupt (in step 5)"),
        (RuntimeError("x" * 9000), f"RuntimeError: {'x' * 500} (in step 5)"),
        (DataError("no such file", hint="download it"), "no such file; download it"),
    ],
)
def test_any_exception_is_one_bounded_line(error: BaseException, said: str) -> None:
    explained = explain(error, doing="in step 5", batch_size=None)
    assert isinstance(explained, AmptuiError)
    assert str(explained) == said


LESS = "check what else uses the GPU (nvidia-smi), or use a smaller model"


@pytest.mark.parametrize(
    ("batch_size", "precision", "hint"),
    [
        (256, "fp32", "try --batch-size 128, or AMP"),
        (256, "fp16", "try --batch-size 128"),
        (1, "ieee", "try AMP"),
        (1, "bf16", LESS),
        (None, None, LESS),
    ],
)
def test_out_of_memory_says_what_would_help(batch_size: int | None, precision: str | None, hint: str) -> None:
    error = torch.OutOfMemoryError("CUDA out of memory")
    explained = explain(error, doing="in step 5", batch_size=batch_size, precision=precision)
    assert isinstance(explained, DeviceError)
    assert explained.what.startswith("CUDA out of memory in step 5")
    assert explained.hint == hint
    assert ("at batch size" in str(explained)) == (batch_size is not None)


# What torch 2.9 and newer say, word by word: c10/cuda/CUDAException.cpp, ATen/cuda/Exceptions.h.
BOILERPLATE = (
    "\nSearch for `cudaErrorAssert' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html"
    " for more information.\nCUDA kernel errors might be asynchronously reported at some other API call, so"
    " the stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)


@pytest.mark.parametrize(
    ("message", "device"),
    [
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "CUDA"),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "CUDA"),
        ("CUDA error: out of memory" + BOILERPLATE, "CUDA"),
        ("CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`", "HIP"),
        ("level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", "XPU"),
        ("MPS backend out of memory (MPS allocated: 9.00 GB)", "MPS"),
    ],
)
def test_out_of_memory_is_recognized_in_each_library_s_words(message: str, device: str) -> None:
    explained = explain(RuntimeError(message), doing="in step 5", batch_size=8, precision="fp16")
    assert explained.what.startswith(f"{device} out of memory in step 5 at batch size 8")


def test_a_kernel_s_error_has_no_boilerplate_and_no_wrong_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered" + BOILERPLATE)

    error = caught(torch.AcceleratorError, fail)
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING", raising=False)
    assert sentence_of(error) == (
        "CUDA error: device-side assert triggered (noticed in step 5); look for a label or an index out of "
        "range, or run again with CUDA_LAUNCH_BLOCKING=1 to find the line that caused it"
    )
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    assert sentence_of(error).startswith(f"CUDA error: device-side assert triggered ({__file__}:")
    assert sentence_of(error).endswith(", in step 5); look for a label or an index out of range")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_the_gpu_s_peak_and_size_are_named() -> None:
    error = caught(torch.OutOfMemoryError, lambda: torch.empty(1 << 50, dtype=torch.uint8, device="cuda"))
    assert isinstance(explain(error, doing="in step 5", batch_size=2), AmptuiError)
    assert " allocated of " in sentence_of(error)
