"""The search for the loop of a script that says nothing: which model it finds, and what it leaves alone."""

import gc
import signal
import traceback
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import optimizer as torch_optimizer

import amptui
from amptui.guest.auto_observe import observe_from_first_step, search_loop
from amptui.guest.monitor import Monitor
from amptui.loops.script.observed_loop import ObservedLoop
from amptui.loops.script.script_model import LooseParameters, owner_of
from tests.builders import StepRow, of, read
from tests.observed import Loop

HOOKED: list[tuple[Any, str]] = [(torch.autograd, "backward"), (torch.autocast, "__enter__")]
HOOKED += [(Tensor, "backward"), (torch.optim.Optimizer, "__init__")]
HOOKED += [(GradScaler, name) for name in ("scale", "unscale_", "step", "update")]


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the runs of a test are; they are closed after it, and no hook is left."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    methods = [getattr(*hook) for hook in HOOKED]
    yield tmp_path / "amptui" / "runs"
    close_monitors()
    for search in _searches:
        search.leave()
    _searches.clear()
    assert not torch_optimizer._global_optimizer_pre_hooks
    assert [getattr(*hook) for hook in HOOKED] == methods


_searches: list[ObservedLoop] = []


def searched(loop: Loop, steps: int) -> list[Exception]:
    faults: list[Exception] = []
    _searches.append(search_loop(open_first=observe_from_first_step, on_fault=faults.append))
    loop.run(steps)
    return faults


def close_monitors() -> None:
    """Nobody holds those that a search opened."""
    for candidate in gc.get_objects():
        if type(candidate) is Monitor:
            candidate.close()


def test_what_was_searched_is_held_by_nobody() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters())
    assert owner_of(optimizer) is model
    reference = weakref.ref(model)
    gc.disable()
    try:
        del model, optimizer
        assert reference() is None
    finally:
        gc.enable()


def test_steps_that_nobody_has_read_hold_nothing_of_the_loop() -> None:
    loop = Loop("fp16")
    with amptui.observe(loop.model, loop.optimizer):
        loop.run(3)
        scaler = weakref.ref(loop.scaler)
        del loop
        gc.collect()
        assert scaler() is None


def steps_in(runs: Path) -> list[StepRow]:
    (run,) = runs.iterdir()
    close_monitors()
    return of(StepRow, read(run / "journal.jsonl"))


def test_an_error_has_no_frame_of_ours_wherever_it_is_caught(runs: Path) -> None:
    def frames(loop: Loop) -> list[tuple[str, str]]:
        entries = []
        for call in (
            lambda: torch.ones(2, requires_grad=True).backward(),
            lambda: loop.scaler.scale("no tensor"),  # type: ignore[arg-type]
            lambda: loop.scaler.step(loop.optimizer),
            lambda: loop.scaler.update("no scale"),  # type: ignore[arg-type]
        ):
            try:
                call()
            except Exception as error:  # noqa: BLE001 - each is another kind
                entries += [
                    (frame.filename, frame.name) for frame in traceback.extract_tb(error.__traceback__)
                ]
        return entries

    bare = frames(Loop("fp16"))
    search = search_loop(
        open_first=lambda _, loop: loop.leave(), on_fault=lambda error: pytest.fail(str(error))
    )
    assert frames(Loop("fp16")) == bare
    search.leave()
    later, loop = Loop("fp16").run(1), Loop("fp16")
    searched(loop, 1)
    assert frames(loop) == frames(later)
    # The calls made a step more, with the gradients that were left.
    assert [(record.step, record.loss_form) for record in steps_in(runs) if not record.optimizer] == [
        *((1, ""), (2, "no backward")),
    ]


def test_an_alarm_of_the_script_that_finds_us_at_work_reaches_the_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def alarm(*_: object) -> None:
        raise TimeoutError

    loop = Loop("fp32")
    searched(loop, 1)
    before = signal.signal(signal.SIGUSR1, alarm)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(
                "amptui.device.readback.HostReadback.push",
                lambda *_, **__: signal.raise_signal(signal.SIGUSR1),
            )
            with pytest.raises(TimeoutError) as raised:
                loop.train_step(2)
    finally:
        signal.signal(signal.SIGUSR1, before)
    ours = str(Path(amptui.__file__).parent)
    assert not [entry.path for entry in raised.traceback if str(entry.path).startswith(ours)]
    loop.train_step(3)


def sgd(*params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for group in params for p in group], lr=0.1)


@pytest.mark.parametrize(
    "wrap",
    [nn.DataParallel, pytest.param(partial(torch.compile, backend="eager"), marks=pytest.mark.ci)],
    ids=["parallel", "compiled"],
)
def test_the_owner_is_the_outermost_model_without_wrappers(wrap: Callable[[nn.Module], nn.Module]) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert owner_of(sgd(wrap(net).parameters())) is net


def test_the_owner_is_the_smallest_model_that_has_all_parameters_that_train() -> None:
    pair = nn.ModuleDict({"first": nn.Linear(2, 2), "second": nn.Linear(2, 2)})
    assert owner_of(sgd(pair["second"].parameters())) is pair["second"]
    assert owner_of(sgd(pair.parameters())) is pair
    pair["first"].requires_grad_(False)  # a frozen trunk and its head
    assert owner_of(sgd(pair["second"].parameters())) is pair


def test_parameters_of_several_models_are_named_by_their_models_and_tensors_by_their_place() -> None:
    encoder, decoder = nn.Linear(2, 3), nn.Bilinear(2, 2, 1)
    image = torch.zeros(3, requires_grad=True)
    owner = owner_of(sgd(encoder.parameters(), decoder.parameters(), [image]))
    assert isinstance(owner, LooseParameters)
    assert [name for name, _ in owner.named_parameters()] == [
        *("Linear.weight", "Linear.bias", "Bilinear.weight", "Bilinear.bias", "group 0, parameter 4"),
    ]
    assert next(iter(owner.parameters())) is encoder.weight
    assert not owner.state_dict()
