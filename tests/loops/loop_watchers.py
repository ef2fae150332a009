"""Watches generated loops with amptui as a script would; the records go to a list, not to a folder."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

import amptui
from amptui import Monitor
from amptui.guest.auto_observe import observe_from_first_step, search_loop
from amptui.guest.processes import OneOfRanks
from amptui.guest.run import RunLength, ScriptRun
from amptui.loops.script.observed_loop import ObservedLoop
from amptui.loops.script.script import ObservedScript, WatchedScript
from amptui.records.answers import RequestMade
from tests.builders import one_by_one
from tests.loops.loop_interpreter import LoopRun
from tests.loops.loop_plans import Example, Watching
from tests.loops.loop_players import Batch, Player, Unwatched

if TYPE_CHECKING:
    from amptui.records.run import Record


class ListedRun(ScriptRun):
    """A run without folder, socket and threads."""

    def __init__(
        self,
        script: ObservedScript | WatchedScript,
        ranks: OneOfRanks | None,
        length: RunLength,
        *,
        watcher: "Watcher",
    ) -> None:
        self._watcher = watcher
        super().__init__(script, ranks, length)

    def _open_recording(self, _path: str, _notify_url: str) -> None:
        self._emit = lambda record: self._watcher.records.extend(one_by_one([record]))

    def _give_up(self, error: Exception) -> None:
        self._watcher.faults.append(error)

    def close(self, error: BaseException | None, *, at_exit: bool) -> None:
        self.loop.close()


class Watcher(Unwatched):
    """``amptui.observe``."""

    monitor: Monitor

    def __init__(self, example: Example) -> None:
        self.example, self.watching = example, example.watching
        self.logs_loss = self.watching.logs_loss
        self.records: list[Record] = []
        """Complete when it is closed."""
        self.faults: list[Exception] = []
        """Those that ended the watching."""

    def open(self, run: LoopRun) -> None:
        with self._listed():
            self._observe(run.players[self.watching.player])

    @contextmanager
    def _listed(self) -> Iterator[None]:
        """Within, a monitor's run only lists its records."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("amptui.guest.monitor.ScriptRun", partial(ListedRun, watcher=self))
            yield

    def _observe(self, player: Player) -> None:
        scaler = player.scaler if self.watching.passes_scaler else None
        self.monitor = amptui.observe(_model(player), player.optimizer, scaler)

    def close(self) -> None:
        self.monitor.close()

    def epochs(self, count: int) -> Iterable[int]:
        return self.monitor.epochs(count) if self.watching.tells_batches else range(count)

    def steps(self, batches: list[Batch]) -> Iterable[Batch]:
        return self.monitor.steps(batches) if self.watching.tells_batches else batches

    def log(self, loss: Tensor) -> None:
        self.monitor.log(loss=loss)


def _model(player: Player) -> nn.Module:
    return player.module if isinstance(player.module, nn.Module) else player.net


class AmpWatcher(Watcher):
    """``amptui.watch``: the loop's autocast and scaler are the monitor's."""

    supplies_amp = True

    def __init__(self, example: Example) -> None:
        super().__init__(example)
        self.uses_monitor = self.watching.uses == "monitor"
        self.forgets_autocast = self.watching.forgets_autocast

    def _observe(self, player: Player) -> None:
        watching = self.watching
        self.amp = self.monitor = amptui.watch(
            _model(player), player.optimizer, precision=watching.precision, scaler=_first_scaler(self.example)
        )

    def before_step(self, player: int, step: int) -> None:
        """Ask in time for the precision of the next step: it is taken after this one."""
        for first, precision in self.watching.switches:
            if player == self.watching.player and first == step + 1:
                run = self.monitor._run
                assert run is not None
                run.control.ask(RequestMade("precision", precision=precision))


def _first_scaler(example: Example) -> GradScaler | None:
    scaler_plan = example.plan.scaler
    if not scaler_plan.scales:
        return None
    return GradScaler("cpu", init_scale=scaler_plan.init_scale, growth_interval=scaler_plan.growth_interval)


class SearchWatcher(Watcher):
    """``amptui run --observe``: the loop tells nothing, not even which optimizer it has."""

    def open(self, run: LoopRun) -> None:
        self._search = search_loop(open_first=self._open_first, on_fault=self.faults.append)

    def _open_first(self, optimizer: Optimizer, loop: ObservedLoop) -> None:
        with self._listed():
            self.monitor = observe_from_first_step(optimizer, loop)

    def close(self) -> None:
        self._search.leave()
        if hasattr(self, "monitor"):  # there may have been no step
            super().close()

    def epochs(self, count: int) -> Iterable[int]:
        return range(count)

    def steps(self, batches: list[Batch]) -> Iterable[Batch]:
        return batches


WATCHERS: Mapping[str, type[Watcher]] = {
    "observe": Watcher,
    "watch": AmpWatcher,
    "run --observe": SearchWatcher,
}


DTYPES_OF_PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class _AmpByHand:
    """What people write to switch precisions without amptui: of each step its autocast and its scaler."""

    def __init__(self, example: Example, begun: Sequence[tuple[torch.dtype, bool]]) -> None:
        self._begun = iter(begun)
        self._keeps_dtype = example.plan.weights != "float32"
        self._scaling = _first_scaler(example) or GradScaler("cpu")
        self._passing = GradScaler("cpu", enabled=False)
        self.optimizer: Optimizer | None = None
        self._dtype = DTYPES_OF_PRECISIONS[example.watching.precision]
        self.scaler = self._scaling if example.watching.precision == "fp16" else self._passing

    def before_step(self) -> None:
        """Take the precision in which this step began."""
        dtype, scales = next(self._begun, (self._dtype, self.scaler is self._scaling))
        self._dtype, self.scaler = dtype, self._scaling if scales else self._passing

    def autocast(self) -> AbstractContextManager[Any]:
        if self._keeps_dtype or self._dtype == torch.float32:
            return nullcontext()
        return torch.autocast("cpu", dtype=self._dtype)

    def backward(self, loss: Tensor) -> None:
        self.scaler.scale(loss.float()).backward()

    def step(self) -> None:
        assert self.optimizer is not None
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


class Bare(Unwatched):
    """Runs an example without amptui; ``begun``: of the watched run, whose precisions it repeats."""

    def __init__(self, example: Example, begun: Sequence[tuple[torch.dtype, bool]] = ()) -> None:
        watching: Watching = example.watching
        self.logs_loss = watching.logs_loss
        if watching.by == "watch":
            self.supplies_amp = True
            self.uses_monitor = watching.uses == "monitor"
            self.forgets_autocast = watching.forgets_autocast
            self.amp = self._by_hand = _AmpByHand(example, begun)

    def open(self, run: LoopRun) -> None:
        if self.supplies_amp:
            self._by_hand.optimizer = run.players[0].optimizer

    def before_step(self, player: int, step: int) -> None:
        if self.supplies_amp:
            self._by_hand.before_step()


def torch_state() -> dict[str, object]:
    """What a watcher may hook for all objects: as before once nobody watches."""
    owners = {"GradScaler": GradScaler, "autocast": torch.autocast, "Optimizer": Optimizer}
    methods = {f"{name}.{key}": value for name, owner in owners.items() for key, value in vars(owner).items()}
    hooks = {
        f"{module}.{name}": len(value)
        for module in ("torch.optim.optimizer", "torch.nn.modules.module")
        for name, value in vars(sys.modules[module]).items()
        if name.startswith("_global") and isinstance(value, dict)
    }
    return {
        **methods,
        **hooks,
        "Tensor.backward": Tensor.backward,
        "torch.autograd.backward": torch.autograd.backward,
        "torch.autograd.grad": torch.autograd.grad,
        "sys.excepthook": sys.excepthook,
        "sys.meta_path": len(sys.meta_path),
    }


def objects_state(run: LoopRun) -> dict[str, object]:
    """What a watcher may leave in the objects of a loop."""
    state: dict[str, object] = {}
    for player in run.players:
        optimizer, name = player.optimizer, f"player {player.number}"
        state[f"{name} optimizer"] = sorted(vars(optimizer))
        state[f"{name} step hooks"] = (
            len(optimizer._optimizer_step_post_hooks),
            len(optimizer._optimizer_step_pre_hooks),
        )
        state[f"{name} scaler"] = [] if player.scaler is None else sorted(vars(player.scaler))
        state[f"{name} modules"] = [sorted(vars(module)) for module in player.net.modules()]
        state[f"{name} parameters"] = [
            (len(p._backward_hooks or ()), len(getattr(p, "_post_accumulate_grad_hooks", None) or ()))
            for p in player.parameters
        ]
    return state


def numbers_of(run: LoopRun) -> list[Tensor]:
    """Every number that a loop leaves behind, and torch's random numbers."""
    tensors: list[Tensor] = [*run.average, torch.get_rng_state()]
    for player in run.players:
        tensors += [parameter.detach() for parameter in player.parameters]
        tensors += [
            value
            for state in player.stepped_optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        ]
        if player.scaler is not None:
            tensors.append(torch.tensor(player.scaler.get_scale()))
    return tensors
