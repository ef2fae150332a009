"""Runs a plan as an ordinary PyTorch loop and notes the truth about its steps."""

import copy
import gc
import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.functional import mse_loss
from torch.optim import Optimizer

from tests.loops.loop_plans import LoopPlan
from tests.loops.loop_players import (
    DTYPES,
    FEATURES,
    SAM,
    TARGETS,
    Batch,
    Net,
    Pass,
    Player,
    Truth,
    Unwatched,
)

Backward = Callable[[Tensor], object]


class LoopRun:
    """One run of a plan; the shapes call its methods as a script has its lines."""

    def __init__(self, plan: LoopPlan, watcher: Unwatched) -> None:
        torch.manual_seed(plan.seed)
        self.plan, self.watcher = plan, watcher
        self.truth = Truth()
        self.computed = torch.float32
        """What the last forward pass computed in."""
        self.begun: list[tuple[torch.dtype, bool]] = []
        """Of each step that was begun, in order: what its first forward pass computed in, and whether losses
        were scaled then."""
        self._beginning = 0
        self.players = self._make_players()
        self.teacher = Net(LoopPlan(), FEATURES, TARGETS) if "teacher" in plan.extras else None
        self.average = [copy.deepcopy(p.detach()) for p in self.players[0].parameters]
        self._used: weakref.WeakSet[GradScaler] = weakref.WeakSet()
        """Scalers that wait for their update."""
        if plan.scaler.kind != "none" and not watcher.supplies_amp:
            self.make_scalers()
        self._generator = torch.Generator().manual_seed(plan.seed + 1)
        self._batches_made = 0

    def _make_players(self) -> list[Player]:
        plan, dtype = self.plan, DTYPES[self.plan.weights]
        if plan.shape in ("GAN", "WGAN"):
            nets = [Net(plan, FEATURES, 1), Net(plan, TARGETS, FEATURES)]
        else:
            count = 1 if plan.shape == "two parts" else plan.players
            nets = [Net(plan, FEATURES, TARGETS) for _ in range(count)]
        if len(nets) == plan.players:
            return [Player(plan, n, net.to(dtype), [*net.parameters()]) for n, net in enumerate(nets)]
        (net,) = (net.to(dtype) for net in nets)
        parts: list[list[nn.Parameter]] = [[*net.body.parameters()], [*net.head.parameters()]]
        return [Player(plan, n, net, part) for n, part in enumerate(parts)]

    def make_scalers(self) -> None:
        """As the plan says; again for new ones in each epoch."""
        settings = self.plan.scaler

        def scaler() -> GradScaler:
            return GradScaler(
                "cpu",
                init_scale=settings.init_scale,
                growth_interval=settings.growth_interval,
                enabled=settings.kind != "disabled",
            )

        shared = scaler()
        for player in self.players:
            player.scaler = scaler() if settings.kind == "one each" else shared

    def _renew(self) -> None:
        plan = self.plan
        if plan.scaler.kind == "new each epoch" and not self.watcher.supplies_amp:
            self.make_scalers()
        if plan.replaces == "optimizer":
            for player in self.players:
                player.make_optimizer()
        elif plan.replaces == "model":
            scalers = [player.scaler for player in self.players]
            self.players.clear()
            if plan.schedule != "none":
                gc.collect()  # a scheduler and its optimizer hold each other
            self.truth.forget()
            self.players += self._make_players()
            for player, scaler in zip(self.players, scalers, strict=True):
                player.scaler = scaler

    def train(self, iterate: Callable[["LoopRun", Batch, int], None]) -> None:
        plan, around = self.plan, self.plan.autocast.around == "whole loop"
        with self._autocast() if around else nullcontext():
            for epoch in self.watcher.epochs(plan.epochs):
                if epoch:
                    self._renew()
                batches = [self._batch() for _ in range(plan.steps * self._batches_per_step())]
                for index, batch in enumerate(self.watcher.steps(batches)):
                    iterate(self, batch, index)
                    self.update()
                self._finish_epoch()

    def _batches_per_step(self) -> int:
        return self.plan.accumulate if self.plan.shape == "plain" else 1

    def _batch(self) -> Batch:
        """Four samples in float64's place of the weights' dtype, with NaN where the plan says so."""
        dtype, number = DTYPES[self.plan.weights], self._batches_made
        self._batches_made += 1
        inputs, targets = torch.randn(2, 4, FEATURES, generator=self._generator)
        if number in self.plan.bad_batches:
            inputs = inputs * math.nan
        return inputs.to(dtype), targets[:, :TARGETS].to(dtype)

    def _finish_epoch(self) -> None:
        for player in self.players:
            if self.plan.schedule == "StepLR each epoch":
                player.scheduler.step()
            elif self.plan.schedule == "ReduceLROnPlateau":
                player.scheduler.step(1.0)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.watcher.amp is not None:
            return nullcontext() if self.watcher.forgets_autocast else self.watcher.amp.autocast()
        dtype = self.plan.autocast.dtype
        return nullcontext() if dtype == "none" else torch.autocast("cpu", dtype=DTYPES[dtype])

    def _autocast_forward(self) -> AbstractContextManager[Any]:
        around = self.plan.autocast.around in ("forward", "forward and loss")
        return self._autocast() if around else nullcontext()

    def predict(self, module: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        if self.plan.checkpoints == "reentrant" and not inputs.requires_grad:
            inputs = inputs.detach().requires_grad_()  # else nothing in it is trained
        if self.plan.autocast.around == "decorator" and isinstance(
            context := self._autocast(), torch.autocast
        ):
            module = context(module)
        with self._autocast_forward():
            output = module(inputs)
        self.computed = output.dtype
        self.begun += [(output.dtype, self._scales())] * self._beginning
        self._beginning = 0
        if self.plan.autocast.without == "last layer" and self.plan.autocast.dtype != "none":
            self.computed = DTYPES[self.plan.autocast.dtype]
        return output

    def loss(self, module: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
        inputs, targets = batch
        if self.teacher is not None:
            targets = targets + self._teach(inputs).to(targets.dtype)
        return self.distance(self.predict(module, inputs), targets)

    def distance(self, output: Tensor, targets: Tensor) -> Tensor:
        plan = self.plan
        context: AbstractContextManager[Any] = nullcontext()
        if plan.autocast.around == "forward and loss":
            context = self._autocast()
        with context, self._without_autocast():
            if plan.weights == "float32":
                output = output.float()
            if plan.backward == "gradient":
                return (output - targets).square().mean(1)
            loss = mse_loss(output, targets)
        return loss.reshape(1) if plan.loss_shape == "one element" else loss

    def _without_autocast(self) -> AbstractContextManager[Any]:
        disables = self.plan.autocast.without == "loss"
        return torch.autocast("cpu", enabled=False) if disables else nullcontext()

    @torch.no_grad()
    def _teach(self, inputs: Tensor) -> Tensor:
        assert self.teacher is not None
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.teacher(inputs.float())  # type: ignore[no-any-return]

    @torch.no_grad()
    def _evaluate(self, player: Player) -> None:
        """In another precision than the training's."""
        other = torch.float16 if self.plan.autocast.dtype == "bfloat16" else torch.bfloat16
        with torch.autocast("cpu", dtype=other):
            player.net(torch.ones(2, player.net.body.in_features, dtype=player.parameters[0].dtype))

    def before_step(self, player: Player) -> None:
        """A step's first forward pass follows."""
        self._beginning += 1
        self.watcher.before_step(player.number, self.truth.count(player.number) + 1)
        if self.plan.clearing.when == "before forward" and self.plan.shape not in ("closure", "LBFGS"):
            self.clear(player)

    def _scales(self) -> bool:
        amp = self.watcher.amp
        return amp is not None and amp.scaler.is_enabled()

    def before_backward(self, player: Player) -> None:
        """A step's first backward pass follows."""
        if self.plan.clearing.when == "before backward":
            self.clear(player)

    def backward(self, player: Player, loss: Tensor, by: Backward, count: int = 1) -> None:
        """Scale ``loss``, divide it by ``count`` and call ``by`` with it, from the line of the script."""
        count = count if self.plan.divides else 1
        scaler, after_scaling = self.scaler(player), self.plan.scaler.divides == "scaled loss"
        divided = loss if count == 1 or after_scaling else loss / count
        root, value = divided, divided.detach().double().sum().item()
        if not self.watcher.uses_monitor and scaler is not None:
            root = scaler.scale(divided)
        if after_scaling and count > 1:
            root = root / count
            value = root.detach().double().sum().item()  # rounded as the division rounds it
            value /= 1.0 if scaler is None else scaler.get_scale()
        single = self.plan.backward != "gradient"
        entry = Pass(value if single else None, self.computed, self.plan.autocast.without == "last layer")
        reached = [p for player in self.players for p in player.parameters]
        self.truth.backward(lambda: by(root), reached, entry)

    def usual(self, root: Tensor) -> None:
        """The call with which the plan's loop backpropagates."""
        match self.plan.backward:
            case "method":
                if self.watcher.uses_monitor and self.watcher.amp is not None:
                    self.watcher.amp.backward(root)
                else:
                    root.backward()
            case "function":
                torch.autograd.backward(root)
            case "list":
                torch.autograd.backward([root])
            case "two losses":
                torch.autograd.backward([root * 0.25, root * 0.75])
            case "inputs":
                root.backward(inputs=[p for p in self._all_parameters() if p.requires_grad])
            case "gradient":
                root.backward(gradient=torch.full_like(root, 0.25))

    def _all_parameters(self) -> Iterator[nn.Parameter]:
        return (parameter for player in self.players for parameter in player.parameters)

    def clear(self, player: Player) -> None:
        parameters = player.parameters
        match self.plan.clearing.how:
            case "to None":
                player.optimizer.zero_grad()
            case "to zeros":
                player.optimizer.zero_grad(set_to_none=False)
            case "model.zero_grad":
                player.net.zero_grad()
                parameters = [*player.net.parameters()]
            case "grad = None":
                for parameter in parameters:
                    parameter.grad = None
            case "grad.zero_":
                for parameter in parameters:
                    if parameter.grad is not None:
                        parameter.grad.zero_()
        self.truth.cleared(parameters)

    def scaler(self, player: Player) -> GradScaler | None:
        """The one that the player's losses go through."""
        return player.scaler if self.watcher.amp is None else self.watcher.amp.scaler

    def clip(self, player: Player) -> Tensor:
        """Unscale the gradients, if the plan does, and clip them; return their norm before."""
        scaler = self.scaler(player)
        if scaler is not None and self.plan.scaler.unscales:
            scaler.unscale_(player.optimizer)
            self._used.add(scaler)
        return nn.utils.clip_grad_norm_(player.parameters, 1.0)

    def step(self, player: Player, closure: Callable[[], Tensor] | None = None) -> None:
        if self.plan.clips and self.plan.guard != "norm":
            self.clip(player)
        scaler, optimizer = self.scaler(player), player.stepped_optimizer
        record_step = self.truth.step(player.number, optimizer, scaler, self.computed)
        if closure is not None:
            record_step(*self._step_by_closure(optimizer, closure))
        elif self.watcher.uses_monitor and self.watcher.amp is not None:
            self.watcher.amp.step()
            record_step()
            self.truth.cleared(player.parameters)
        else:
            self._step_by_scaler(player, scaler)
            record_step()
        self._after_step(player)

    def _step_by_scaler(self, player: Player, scaler: GradScaler | None) -> None:
        if isinstance(player.optimizer, SAM):
            player.optimizer.second_step()
        elif scaler is None:
            player.optimizer.step()
        else:
            scaler.step(player.optimizer)
            self._used.add(scaler)
            if self.plan.scaler.updates == "each step":
                self.update()

    def _step_by_closure(self, optimizer: Optimizer, closure: Callable[[], Tensor]) -> tuple[list[Pass], int]:
        passes: list[list[Pass]] = []

        def noted() -> float:
            loss = closure()
            passes.append(self.truth.passes(optimizer))
            return loss.item()

        optimizer.step(noted)
        return passes[0], len(passes)

    def _after_step(self, player: Player) -> None:
        plan = self.plan
        if plan.schedule in ("StepLR", "OneCycleLR"):
            player.scheduler.step()
        if plan.clearing.when == "after step":
            self.clear(player)
        if "EMA" in plan.extras and player.number == 0:
            with torch.no_grad():
                for average, parameter in zip(self.average, player.parameters, strict=True):
                    average.lerp_(parameter, 0.1)
        if "evaluation" in plan.extras:
            self._evaluate(player)

    def update(self) -> None:
        """Update the scalers that have looked for overflows since their last update."""
        for scaler in list(self._used):
            scaler.update()
        self._used.clear()

    def drop(self, player: Player) -> None:
        """The guard's branch: clear the gradients; the loop continues."""
        self.truth.drop(player.number, player.optimizer)
        self.clear(player)
