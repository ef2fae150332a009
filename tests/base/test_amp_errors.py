"""torch's own errors about mixed precision, provoked, and what is said about each; and ours."""

import pickle
import re
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from amptui.base import errors
from amptui.base.amp_errors import AMP_ERRORS, known_hint


def half(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, dtype=torch.float16)


def scaled(*calls: str, dtype: torch.dtype = torch.float32, backward: bool = True) -> None:
    """A scaler's methods, called in turn."""
    weight = nn.Parameter(torch.ones(2, dtype=dtype))
    optimizer, scaler = torch.optim.SGD([weight]), torch.amp.GradScaler("cpu")
    loss = scaler.scale(weight.sum().abs())
    if backward:
        loss.backward()
    for call in calls:
        getattr(scaler, call)(*([] if call == "update" else [optimizer]))


def refused_by_cuda_s_autocast() -> object:
    """What torch does on a GPU: its kernel for autocast, called with tensors of a CPU."""
    torch.set_autocast_enabled("cuda", True)
    try:
        with torch._C._IncludeDispatchKeyGuard(torch._C.DispatchKey.AutocastCUDA):
            return functional.binary_cross_entropy(torch.rand(3), torch.rand(3))
    finally:
        torch.set_autocast_enabled("cuda", False)


def float8_twice_differentiated() -> None:
    """As torchao's layers are in a gradient penalty."""
    float8 = pytest.importorskip("torchao.float8")
    config = float8.Float8LinearConfig(emulate=True)
    layer = float8.convert_to_float8_training(nn.Sequential(nn.Linear(16, 16)), config=config)
    inputs = torch.ones(2, 16, requires_grad=True)
    (slope,) = torch.autograd.grad(layer(inputs).sum(), inputs, create_graph=True)
    slope.sum().backward()


SOME, ALL = torch.tensor([0, 1]), torch.tensor([True, True])

MIXED, ABSENT, WRITTEN = "a float32 and a 16-bit", "this operation does not exist", "values are written into"

PROVOKED: dict[str, tuple[Callable[[], object], str]] = {
    "unscale twice": (lambda: scaled("unscale_", "unscale_"), "unscale_() ran twice"),
    "unscale late": (lambda: scaled("step", "unscale_"), "unscale_() must come before"),
    "step twice": (lambda: scaled("step", "step"), "update() is missing"),
    "no gradient": (lambda: scaled("step", backward=False), "no parameter of this optimizer"),
    "no step": (lambda: scaled("update"), "update() ran without a step()"),
    "float16 weights": (lambda: scaled("step", dtype=torch.float16), "the parameters are float16"),
    "complex weights": (lambda: scaled("unscale_", dtype=torch.complex64), "a GradScaler cannot unscale"),
    "nothing scaled": (lambda: torch.amp.GradScaler("cpu").update(), "the scaler has not scaled"),
    "empty state": (lambda: torch.amp.GradScaler("cpu").load_state_dict({}), "the checkpoint was saved"),
    "bce": (refused_by_cuda_s_autocast, "a probability rounded to float16"),
    "complex half": (lambda: half(2, 2).to(torch.complex32).exp(), "torch has few operations on complex"),
    "no kernel": (lambda: torch.linalg.qr(half(2, 2)), ABSENT),
    "no bfloat16 kernel": (lambda: torch.linalg.svd(half(2, 2).bfloat16()), ABSENT),
    "float8 penalty": (float8_twice_differentiated, "a float8 layer has no second derivative"),
    "numpy": (lambda: half(2).bfloat16().numpy(), "NumPy has no bfloat16"),
    "mask": (lambda: half(2).masked_fill(ALL, -1e9), "the constant is out of the range"),
    "bfloat16 mask": (lambda: half(2).bfloat16().masked_fill(ALL, 1e39), "the constant is out of the range"),
    "index put": (lambda: torch.ones(2).index_put_((SOME,), half(2)), WRITTEN),
    "scatter": (lambda: torch.ones(2).scatter_add_(0, SOME, half(2)), WRITTEN),
    "index add": (lambda: torch.ones(2).index_add_(0, SOME, half(2)), WRITTEN),
    "loss": (lambda: functional.binary_cross_entropy(torch.ones(2), half(2)), "the loss mixes float32"),
    "lstm state": (lambda: nn.LSTM(2, 2)(torch.ones(1, 1, 2), (half(1, 1, 2),) * 2), "perhaps the carried"),
    "m1 and m2": (lambda: half(2, 2) @ torch.ones(2, 2), MIXED),
    "mat1 and mat2": (lambda: nn.Linear(2, 2)(half(2, 2)), MIXED),
    "scalar type": (lambda: torch.bmm(half(1, 2, 2), torch.ones(1, 2, 2)), MIXED),
    "lstm input": (lambda: nn.LSTM(2, 2)(half(1, 1, 2)), MIXED),
}


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("name", PROVOKED)
def test_each_error_that_torch_raises_has_its_cause_and_fix(name: str) -> None:
    provoke, cause = PROVOKED[name]
    message = ""
    try:
        provoke()
    except (RuntimeError, ValueError, AssertionError, TypeError) as error:
        message = str(error)
    if not message or (name == "lstm state" and "primitive" not in message):
        pytest.skip(f"torch {torch.__version__} does not raise it on this CPU")
    assert known_hint(message)[1].startswith(cause)


def test_each_row_is_provoked_above() -> None:
    causes = [cause for _, cause in PROVOKED.values()]
    assert all(any(hint.startswith(cause) for cause in causes) for hint in AMP_ERRORS.values())


@pytest.mark.parametrize(
    "message",
    [
        "",
        "binary_cross_entropy: wrong size",
        "x is unsafe to autocast. Sorry.",
        "expected m1 and m2 to have the same dtype, but got: double != float",
        "\"exp\" not implemented for 'Long'",
        "Half of the batch is empty",
    ],
)
def test_other_errors_get_no_advice(message: str) -> None:
    assert known_hint(message) == (message, "")


def test_autocast_s_refusal_is_one_line() -> None:
    with pytest.raises(RuntimeError, match="unsafe to autocast") as refusal:
        refused_by_cuda_s_autocast()
    shown, hint = known_hint(str(refusal.value))
    assert shown.endswith("torch.nn.BCELoss are unsafe to autocast")
    assert re.fullmatch(r".*: loss = BCEWithLogitsLoss\(\).*", hint)


# ----------------------------------------------------------------------------------- our own errors
@pytest.mark.parametrize(("kind", "status"), [(errors.UsageError, 2), (errors.DataError, 1)])
def test_an_error_says_what_and_how_to_mend_it(kind: type[errors.AmptuiError], status: int) -> None:
    error = kind("no model file x.py", hint="check the path")
    assert str(error) == "no model file x.py; check the path"
    assert (error.what, error.hint, error.exit_status) == ("no model file x.py", "check the path", status)
    assert str(kind("no model file x.py")) == "no model file x.py"


def test_every_error_is_in_the_tree_that_the_docstring_draws() -> None:
    drawn = [word for word in (errors.__doc__ or "").split() if word.endswith("Error")]
    kinds = [v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, errors.AmptuiError)]
    assert drawn == [kind.__name__ for kind in kinds]


def test_an_error_of_a_loader_s_worker_process_comes_back_readable() -> None:
    error = pickle.loads(pickle.dumps(errors.DataError("file cut off", hint="download it again")))  # noqa: S301
    assert str(error).startswith("file cut off; download it again")
