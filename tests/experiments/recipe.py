"""The model file of the experiments: each part of a training can be chosen with ``--set``."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, TextIO

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from amptui import Arrays, Data, DataRequest, Experiment, warmup_cosine, weight_decay_groups

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9, nesterov=True),
    "fused sgd": lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9, fused=True),
    "adam": torch.optim.Adam,
    "fused adam": lambda p, lr: torch.optim.Adam(p, lr, fused=True),
    "adamw": lambda p, lr: torch.optim.AdamW(p, lr, weight_decay=0.1),
    "rmsprop": lambda p, lr: torch.optim.RMSprop(p, lr, momentum=0.5, centered=True),
}

SCHEDULES: dict[str, Callable[[Optimizer, int], LRScheduler]] = {
    "warm-up and cosine": lambda optimizer, steps: warmup_cosine(optimizer, steps, warmup_steps=3),
    "cosine": lr_scheduler.CosineAnnealingLR,
    "one cycle": lambda optimizer, steps: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps + 1),
    "exponential": lambda optimizer, _: lr_scheduler.ExponentialLR(optimizer, 0.9),
    "two in sequence": lambda optimizer, _: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4), lr_scheduler.ExponentialLR(optimizer, 0.8)],
        [4],
    ),
    # A relative threshold of 10 takes nothing for an improvement.
    "plateau": lambda optimizer, _: lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=0.1, patience=0, threshold=10.0
    ),
}


Form = Literal["arrays", "dataset", "loader", "own order", "workers", "jitter", "stream"]


class Calls:
    """How many training losses were computed; checkpoints keep it, as all that can tell its state."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


class Recipe(Experiment):
    """A small classifier of random images, whose first pixel is the image's number."""

    epochs: int = 2
    batch_size: int = 8
    learning_rate: float = 0.01
    samples: int = 70
    optimizer: str = "adam"
    groups: bool = False
    """Two groups: without decay at twice the rate, and with it."""
    schedule: str = ""
    average: float = 0.0
    """The decay of an average of the weights; 0 is none."""
    norm: bool = False
    lazy: bool = False
    """Its layers take their sizes from the first batch."""
    dropout: float = 0.0
    factor: float = 0.0
    """In the place of the cross entropy a squared output this large: float16 overflows at first."""
    spoilt: str = ""
    """The calls of the loss whose gradients are made Inf, with commas."""
    nans: str = ""
    """The calls whose loss is NaN."""
    parts: bool = False
    data: Form = "arrays"
    validates: bool = True
    step_ms: float = 0.0
    """How long a training loss takes at least: a person has time to press a key."""
    trail: str = ""
    """A file to which each training loss adds a line: its number, the rank, the batch's images."""

    def load_data(self, request: DataRequest) -> Data:
        generator = torch.Generator().manual_seed(request.seed)
        images = torch.randint(0, 256, (self.samples, 1, 4, 4), generator=generator, dtype=torch.uint8)
        images[:, 0, 0, 0] = torch.arange(self.samples)
        labels = images.flatten(1).float().mean(1).div(64).long()
        validation = Arrays(images[:35], labels[:35]) if self.validates else None
        pairs = TensorDataset(images / 255, labels)
        train: Any = Arrays(images, labels)
        if self.data == "dataset":
            train = pairs
        elif self.data == "stream":
            train = Stream(pairs)
        elif self.data != "arrays":
            own = torch.Generator().manual_seed(9) if self.data == "own order" else None
            train = DataLoader(
                Jittered(pairs) if self.data == "jitter" else pairs,
                self.batch_size,
                shuffle=True,
                generator=own,
                num_workers=int(self.data == "workers"),
                persistent_workers=self.data == "workers",
            )
        return Data(name="noise", real=False, train=train, validation=validation)

    def build_model(self) -> nn.Module:
        self.calls = Calls()
        self.sampled: TextIO | None = None  # what sizes lazy layers counts nowhere
        first, last = (nn.LazyLinear, nn.LazyLinear) if self.lazy else (partial(nn.Linear, 16),) * 2
        layers: list[nn.Module] = [nn.Flatten(), first(16), nn.ReLU(), nn.Dropout(self.dropout), last(4)]
        if self.norm:
            layers.insert(2, nn.LazyBatchNorm1d() if self.lazy else nn.BatchNorm1d(16))
        return nn.Sequential(*layers)

    def build_optimizer(self, model: nn.Module) -> Optimizer:
        self.calls = Calls()
        self.sampled = Path(self.trail).open("a") if self.trail else None  # noqa: SIM115 - until the end
        if self.average:
            self.ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(self.average))
        parameters: Any = list(model.parameters())
        if self.groups:
            parameters = weight_decay_groups(model, 0.1)
            parameters[1]["lr"] = 2 * self.learning_rate
        return OPTIMIZERS[self.optimizer](parameters, lr=self.learning_rate)

    def build_scheduler(self, optimizer: Optimizer, total_steps: int | None) -> LRScheduler | None:
        return SCHEDULES[self.schedule](optimizer, total_steps or 0) if self.schedule else None

    def loss(self, model: nn.Module, batch: Any) -> Tensor | dict[str, Tensor]:
        if model.training:
            self.calls.count += 1
            self._tell(batch[0])
            time.sleep(self.step_ms / 1000)
        loss = super().loss(model, batch) if not self.factor else self._large(model, batch[0])
        assert isinstance(loss, Tensor)
        if model.training:
            call = str(self.calls.count)
            if call in self.spoilt.split(","):
                loss.register_hook(lambda gradient: gradient * torch.inf)
            if call in self.nans.split(","):
                loss = loss * torch.nan
        return {"loss": 1.5 * loss, "half": loss.detach() / 2} if self.parts else loss

    def _large(self, model: nn.Module, inputs: Tensor) -> Tensor:
        loss: Tensor = (model(inputs).float() * self.factor).square().mean()
        return loss

    def _tell(self, images: Tensor) -> None:
        """Note what the batch holds, and end the process where the environment says so."""
        if self.sampled is not None:
            numbers = (images[:, 0, 0, 0].float() * 255).round().int().tolist()
            print(self.calls.count, os.environ.get("RANK", "0"), *numbers, file=self.sampled, flush=True)
        kind, _, at = os.environ.get("END_AT", "").partition(" ")
        if at == str(self.calls.count):
            journal = Path(self.trail).with_name("run") / "journal.jsonl"
            stops = journal.read_text().count('"stopping"')
            os.kill(os.getpid(), signal.SIGKILL if kind == "kill" else signal.SIGTERM)
            # The main thread, which may be busy, says so when it has asked the run to stop.
            while journal.read_text().count('"stopping"') == stops:
                time.sleep(0.001)

    def after_step(self, model: nn.Module) -> None:
        if self.average:
            self.ema.update_parameters(model)


class ByEpoch(Recipe):
    scheduler_interval: ClassVar[Literal["step", "epoch"]] = "epoch"


class Jittered(Dataset[tuple[Tensor, Tensor]]):
    """Images with noise from all three generators that people use."""

    def __init__(self, pairs: TensorDataset) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, label = self.pairs[index]
        noise = torch.rand(4, 4) + random.random() + float(np.random.random())
        noise[0, 0] = 0.0
        return image + 0.1 * noise, label


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """The pairs in order, as a stream that does not know its length."""

    def __init__(self, pairs: TensorDataset) -> None:
        self.pairs = pairs

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return (self.pairs[number] for number in range(len(self.pairs)))
