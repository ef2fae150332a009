"""One autocast and one scaler that follow the precision."""

import pytest
import torch

from amptui.guest.loop.switched_amp import SwitchedAmp


def _autocast_state() -> tuple[object, ...]:
    return (
        *(
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            torch.is_autocast_cache_enabled(),
        ),
        torch.autocast_increment_nesting() - torch.autocast_decrement_nesting(),
    )


@pytest.mark.parametrize("cache_enabled", [True, False])
@pytest.mark.parametrize(
    ("name", "dtype"), [("fp32", None), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
@pytest.mark.torch
def test_its_autocast_is_torch_s(name: str, dtype: torch.dtype | None, cache_enabled: bool) -> None:
    amp = SwitchedAmp(torch.device("cpu"))
    amp.follow(amp.precisions[name])
    for _ in range(2):
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None, cache_enabled=cache_enabled):
            expected = _autocast_state()
        with amp.autocast(cache_enabled=cache_enabled) as context:
            assert _autocast_state() == expected
        assert type(context) is torch.autocast


def test_autocasts_may_be_nested_and_leave_the_state_from_before() -> None:
    amp, before = SwitchedAmp(torch.device("cpu")), _autocast_state()
    amp.follow(amp.precisions["bf16"])
    outer, inner = amp.autocast(), amp.autocast()
    with outer:
        with inner:
            amp.follow(amp.precisions["fp32"])
            with amp.autocast():
                assert not torch.is_autocast_enabled("cpu")
            assert torch.is_autocast_enabled("cpu")
        assert torch.is_autocast_enabled("cpu")
    assert _autocast_state() == before


def test_a_disabled_autocast_keeps_the_dtype_that_the_script_has_set() -> None:
    amp = SwitchedAmp(torch.device("cpu"))
    with amp.autocast():
        pass
    torch.set_autocast_dtype("cpu", torch.float16)
    try:
        with amp.autocast():
            assert torch.get_autocast_dtype("cpu") == torch.float16
    finally:
        torch.set_autocast_dtype("cpu", torch.bfloat16)


@pytest.mark.torch
def test_a_whole_step_with_it_is_compiled_to_one_graph() -> None:
    amp = SwitchedAmp(torch.device("cpu"))
    amp.follow(amp.precisions["bf16"])
    weight = torch.ones(4, 4)

    def product() -> torch.Tensor:
        with amp.autocast():
            return weight @ weight

    torch.compiler.reset()
    compiled = torch.compile(product, backend="eager", fullgraph=True)
    assert compiled().dtype == product().dtype == torch.bfloat16
    torch.compiler.reset()
