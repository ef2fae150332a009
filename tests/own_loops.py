"""A loop as people write it for watch(), in each of its forms, and a screen that asks for something."""

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn

import amptui
from amptui import AmpMonitor, Monitor
from amptui.guest.run import ScriptRun
from amptui.records.answers import RequestMade
from amptui.records.run import Record
from tests.builders import recorded

Form = Literal["monitor", "scaler", "closure"]
"""How the loop is written: with the monitor's methods, as an AMP loop, with train_step()."""

FORMS: tuple[Form, ...] = ("monitor", "scaler", "closure")

NOTHING: Mapping[int, RequestMade] = MappingProxyType({})

Asks = Mapping[int, RequestMade]
"""Requests by step: each is taken at the end of that step."""


class Own:
    """A model, its data and a loop in each form; ``clip_norm`` and ``accumulate`` as people write them."""

    def __init__(
        self,
        *,
        fused: bool = False,
        clip_norm: float | None = None,
        accumulate: int = 1,
        device: str = "cpu",
    ) -> None:
        torch.manual_seed(0)
        self.device = device
        self.generator = torch.Generator(device).manual_seed(1)
        layers = nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4)
        self.model = nn.Sequential(*layers).to(device)
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-3, fused=fused
        )
        self.clip_norm = clip_norm
        self.accumulate = accumulate

    def scaler(self) -> torch.amp.GradScaler:
        return torch.amp.GradScaler(self.device, growth_interval=8, init_scale=2.0**16)

    def loader(self, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        labels = torch.arange(8, device=self.device) % 4
        for step in range(1, steps + 1):
            for _ in range(self.accumulate):
                inputs = torch.randn(8, 16, generator=self.generator, device=self.device)
                # In these steps float16 overflows.
                yield inputs * (1e6 if step in (14, 15, 40) else 1.0), labels

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def bare(self, steps: int) -> torch.amp.GradScaler:
        """The handwritten loop in float32; returns the scaler that it does not use."""
        for batch in self.loader(steps):
            self.optimizer.zero_grad()
            self.loss(batch).backward()
            if self.clip_norm is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm)
            self.optimizer.step()
        return self.scaler()

    def watch(self, **options: Any) -> AmpMonitor:
        return amptui.watch(
            self.model, self.optimizer, scaler=self.scaler(), clip_norm=self.clip_norm, **options
        )

    def watched(
        self,
        monitor: AmpMonitor,
        form: Form,
        steps: int,
        before: Callable[[int], object] = lambda _step: None,
        asks: Asks = NOTHING,
    ) -> None:
        """Train in one of the forms; as a step begins ``before`` is called and what ``asks`` has is asked."""
        batches: list[tuple[Tensor, Tensor]] = []
        step = 0
        self.optimizer.zero_grad()
        for batch in monitor.steps(list(self.loader(steps))):
            if not batches:
                step += 1
                before(step)
                if step in asks:
                    ask(monitor, asks[step])
            batches.append(batch)
            if form == "closure":
                if len(batches) == self.accumulate:
                    monitor.train_step(*[lambda batch=batch: self.loss(batch) for batch in batches])
                    batches = []
                continue
            with monitor.autocast():
                loss = self.loss(batch)
            loss = loss / self.accumulate
            if form == "monitor":
                monitor.backward(loss)
            else:
                monitor.scaler.scale(loss).backward()
            if len(batches) < self.accumulate:
                continue
            batches = []
            if form == "monitor":
                monitor.step()
                continue
            scaler = monitor.scaler
            scaler.unscale_(self.optimizer)
            if self.clip_norm is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm)
            scaler.step(self.optimizer)
            scaler.update()
            self.optimizer.zero_grad()

    def state(self, scaler: torch.amp.GradScaler) -> list[Any]:
        moments = [value for state in self.optimizer.state.values() for value in state.values()]
        tensors = [*self.model.parameters(), *moments, torch.get_rng_state()]
        return [*[tensor.tolist() for tensor in tensors], scaler.state_dict()]


def ask(monitor: Monitor, request: RequestMade) -> None:
    """As a screen asks: in the server's thread."""
    assert isinstance(monitor._run, ScriptRun)
    thread = threading.Thread(target=monitor._run._answer, args=(request,))
    thread.start()
    thread.join()


def switches(to: Mapping[int, str]) -> Asks:
    """Ask for the precision of a step in time: in the step before."""
    return {step - 1: RequestMade("precision", precision=name) for step, name in to.items() if step > 1}


def watched_run(
    runs: Path,
    form: Form,
    steps: int,
    asks: Asks = NOTHING,
    own: Own | None = None,
    **options: Any,
) -> list[Record]:
    """What the only run has recorded once a loop was watched to its end."""
    own = own or Own()
    with own.watch(**options) as monitor:
        own.watched(monitor, form, steps, asks=asks)
    return recorded(runs)
