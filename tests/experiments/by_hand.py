"""The loop that the author of a recipe would have written by hand: plain PyTorch, and what it measured."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader

from amptui import Arrays, Data, DataRequest
from tests.experiments.recipe import ByEpoch, Recipe

AUTOCAST = {"fp16": torch.float16, "bf16": torch.bfloat16}

NOTHING_CHOSEN: Mapping[int, str] = {}

Batch = tuple[Tensor, Tensor]

Step = dict[str, Any]
"""What is known of one optimizer step, under the names of the journal."""


@dataclass(frozen=True, kw_only=True)
class Training:
    precision: str = "fp32"
    clip_norm: float | None = None
    accumulate: int = 1
    seed: int = 0
    steps: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    validate_every: int | None = None
    validation_batches: int | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    by_epoch: bool = False
    """Whether the schedule moves after each epoch."""
    ends: tuple[str, ...] = ()
    """The calls of the loss in which its processes end, by SIGTERM or SIGKILL: ``("term 5", "kill 9")``."""
    checkpoint_every: int | None = None
    nproc: int | None = None
    """So many ranks, each with batches of its own."""

    def experiment(self, **fields: Any) -> Recipe:
        options = {"epochs": self.epochs, "batch_size": self.batch_size, "learning_rate": self.lr}
        fields |= {name: value for name, value in options.items() if value is not None}
        return (ByEpoch if self.by_epoch else Recipe)(**{**self.recipe, **fields})


@dataclass
class Ledger:
    steps: list[Step] = field(default_factory=list)
    validations: list[Step] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)


Batches = Callable[[int], Iterable[Batch]]
"""The batches of an epoch, which is counted from 1."""


class Loop:
    """A recipe's objects, made in the order in which amptui makes them, and the steps that train them."""

    def __init__(
        self, training: Training, *, order: Sequence[Sequence[int]] = (), scaler: GradScaler | None = None
    ) -> None:
        self.training, self.recipe, self.ledger = training, training.experiment(lazy=False), Ledger()
        random.seed(training.seed)
        np.random.seed(training.seed % 2**32)
        torch.manual_seed(training.seed)
        self.data: Data = self.recipe.load_data(DataRequest(data_dir=Path("unused"), seed=training.seed))
        self.model = self.recipe.build_model()
        self.optimizer = self.recipe.build_optimizer(self.model)
        self.ranks = training.nproc or 1
        batches = self.recipe.samples // (self.recipe.batch_size * self.ranks)
        if self.recipe.data not in ("arrays", "dataset", "stream"):
            batches = -(-self.recipe.samples // self.recipe.batch_size)
        self.batches_per_epoch = batches
        steps_per_epoch = -(-batches // training.accumulate)
        self.epochs = self.recipe.epochs if training.steps is None else -(-training.steps // steps_per_epoch)
        self.steps = training.steps or self.epochs * steps_per_epoch
        self.scheduler: Any = self.recipe.build_scheduler(self.optimizer, self.steps)
        self.scaler = scaler or GradScaler("cpu")
        self.order = list(order)

    def batches(self, epoch: int) -> Iterable[Batch]:
        """A loader's own; else the whole batches in the order that is known."""
        if not self.order:
            source: Any = self.data.train
            stream = self.recipe.data == "stream"
            return DataLoader(source, self.recipe.batch_size, drop_last=True) if stream else source
        train: Any = self.data.train
        inputs, targets = (train.inputs / 255, train.targets) if isinstance(train, Arrays) else train.tensors
        first = (epoch - 1) * self.batches_per_epoch
        chosen = self.order[first : first + self.batches_per_epoch]
        return [(inputs[list(numbers)], targets[list(numbers)]) for numbers in chosen]

    def run(self, precisions: Mapping[int, str] = NOTHING_CHOSEN) -> Ledger:
        """Train; ``precisions`` of the steps are those that were chosen meanwhile."""
        step, every = 0, self.training.validate_every
        for epoch in range(1, self.epochs + 1):
            batches, left = iter(self.batches(epoch)), self.batches_per_epoch
            while left and step < self.steps:
                micro_batches = list(islice(batches, self.training.accumulate))
                left -= len(micro_batches)
                step += 1
                self.step(step, epoch, precisions.get(step, self.training.precision), micro_batches)
                if every and step % every == 0 and left:
                    self.validate(step, epoch)
            if left:
                break
            next(batches, None)  # a loop over a loader reads it to its end
            self.validate(step, epoch)
            if self.scheduler is not None and self.training.by_epoch:
                needs_loss = isinstance(self.scheduler, ReduceLROnPlateau)
                self.scheduler.step(*[self.ledger.validations[-1]["loss"]] if needs_loss else [])
        model = self.recipe.ema.module if self.recipe.average else self.model
        self.ledger.weights = model.state_dict()
        return self.ledger

    def step(self, step: int, epoch: int, precision: str, batches: Sequence[Batch]) -> None:
        samples, scaler = [len(inputs) for inputs, _ in batches], self.scaler
        rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        row: Step = {"step": step, "epoch": epoch, "precision": precision, "samples": sum(samples)}
        row |= {"lr": rates[0], "group_lrs": rates if len(set(rates)) > 1 else []}
        row |= {"micro_batches": len(batches), "skipped": False, "loss_scale": None, "growth_tracker": None}
        scales = precision == "fp16"
        if scales:
            row["loss_scale"] = scaler.get_scale()
        row |= self.update(precision, batches, samples)
        if scales:
            row["skipped"] = scaler.get_scale() < row["loss_scale"]
            row["growth_tracker"] = scaler.state_dict()["_growth_tracker"]
        self.recipe.after_step(self.model)
        if self.scheduler is not None and not self.training.by_epoch and not row["skipped"]:
            self.scheduler.step()
        self.ledger.steps.append(row)

    def update(self, precision: str, batches: Sequence[Batch], samples: Sequence[int]) -> Step:
        """Make it as PyTorch's own pages on AMP, accumulation and clipping do; the loss and the norm."""
        scaler, scales, parameters = self.scaler, precision == "fp16", [*self.model.parameters()]
        calls, losses, gradients = self.recipe.calls.count, list[dict[str, Tensor]](), list[list[Tensor]]()
        for rank in range(self.ranks):  # one after another what they do at once
            self.recipe.calls.count = calls
            self.optimizer.zero_grad()
            own_batches = [(x.chunk(self.ranks)[rank], y.chunk(self.ranks)[rank]) for x, y in batches]
            losses.append(self.backward(precision, own_batches, samples))
            gradients.append([p.grad / self.ranks for p in parameters if p.grad is not None])
        if self.ranks > 1:
            for parameter, *means in zip(parameters, *gradients, strict=True):
                parameter.grad = torch.stack(means).sum(0)
        known: Step = {name: float(sum(own[name] for own in losses)) / self.ranks for name in losses[0]}
        if scales:
            scaler.unscale_(self.optimizer)
        if (limit := self.training.clip_norm) is not None:
            known["grad_norm"] = nn.utils.clip_grad_norm_(parameters, limit).item()
        if scales:
            scaler.step(self.optimizer)
            scaler.update()
        else:
            self.optimizer.step()
        return known

    def backward(self, precision: str, batches: Sequence[Batch], samples: Sequence[int]) -> dict[str, Tensor]:
        """Add the gradients of a rank's batches; the sums of their losses."""
        sums: dict[str, Tensor] = {}
        dtype = AUTOCAST.get(precision)
        for batch in batches:
            with torch.autocast("cpu", dtype, enabled=dtype is not None):
                parts = self.parts(batch)
            for name, part in parts.items():
                share = shared(part, len(batch[0]) * self.ranks, samples)
                if name == "loss":
                    (self.scaler.scale(share) if precision == "fp16" else share).backward()
                sums[name] = sums.get(name, torch.zeros(())) + share.detach()
        return sums

    def parts(self, batch: Batch) -> dict[str, Tensor]:
        computed = self.recipe.loss(self.model, batch)
        return computed if isinstance(computed, dict) else {"loss": computed}

    def validate(self, step: int, epoch: int) -> None:
        """One pass over the validation images, in the precision of the step before."""
        if not isinstance(held_out := self.data.validation, Arrays):
            return
        dtype = AUTOCAST.get(self.ledger.steps[-1]["precision"])
        sums: dict[str, Tensor | float] = {}
        size, samples = self.recipe.batch_size, 0
        starts = range(0, len(held_out), size)
        self.model.eval()
        for start in islice(starts, self.training.validation_batches):
            batch = held_out.inputs[start : start + size] / 255, held_out.targets[start : start + size]
            with torch.no_grad(), torch.autocast("cpu", dtype, enabled=dtype is not None):
                means = self.recipe.metrics(self.model, batch)
                if "loss" not in means:
                    means["loss"] = self.parts(batch)["loss"]
            for name, mean in means.items():
                sums[name] = sums.get(name, 0.0) + mean.float() * len(batch[0])
            samples += len(batch[0])
        self.model.train()
        whole = {name: float(value) / samples for name, value in sums.items()}
        self.ledger.validations.append({"step": step, "epoch": epoch, "samples": samples, **whole})


def shared(mean: Tensor, held: int, samples: Sequence[int]) -> Tensor:
    """A batch's part of the mean: equal ones as everybody divides them, others by what they hold."""
    return mean / len(samples) if len(set(samples)) == 1 else mean * (held / sum(samples))
