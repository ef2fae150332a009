"""A small training in Lightning, the same in a loop of one's own, and what each leaves behind."""

import logging
import warnings
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of packages that Lightning imports
    import lightning.pytorch as pl
    from lightning.pytorch.plugins import MixedPrecision

from amptui.lightning import PrecisionMonitor
from amptui.records.control import Request
from tests.observed import AUTOCAST
from tests.own_loops import ask

if TYPE_CHECKING:
    from collections.abc import Callable

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

SWITCHES = {1: "fp16", 7: "bf16", 11: "fp32", 12: "fp16", 26: "ieee", 31: "fp16"}
"""From which step on which precision runs."""

OVERFLOWS = (3, 4)
"""Steps of each epoch (counted from 1) whose input overflows float16."""

EPOCHS = 4

STEPS_PER_EPOCH = 10

BATCH_SIZE = 8


class Net(pl.LightningModule):
    """A classifier as people write it."""

    def __init__(self, *, fused: bool = False, schedule: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
        self.fused = fused
        self.schedule = schedule

    def loss(self, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def training_step(self, batch: Any, _: int) -> Tensor:
        loss = self.loss(batch)
        self.log("train_loss", loss, on_step=True, on_epoch=True)  # Lightning gives it a second name
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        self.log("val_loss", self.loss(batch))
        self.log("val_acc", (self.net(batch[0]).argmax(dim=1) == batch[1]).float().mean())
        self.log("top5", 1.0)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3, fused=self.fused)
        if not self.schedule:
            return optimizer
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Manual(Net):
    """Two optimizers, stepped by the script itself."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, _: int) -> None:  # type: ignore[override]
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(layer.parameters(), lr=1e-3) for layer in (self.net[0], self.net[3])]


class Lbfgs(Net):
    """Its optimizer runs the closure several times in a step."""

    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)


def inputs(accumulate: int) -> tuple[Tensor, Tensor]:
    """An epoch's batches in their order, of which some overflow float16."""
    count = STEPS_PER_EPOCH * accumulate
    drawn = torch.randn(count, BATCH_SIZE, 16, generator=torch.Generator().manual_seed(1))
    for step in OVERFLOWS:
        drawn[(step - 1) * accumulate : step * accumulate] *= 1e6
    return drawn, (torch.arange(BATCH_SIZE) % 4).expand(count, -1)


def build_loader(accumulate: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*inputs(accumulate)), batch_size=None)


class Batches(pl.LightningDataModule):
    """The same batches in each epoch."""

    def __init__(self, accumulate: int = 1, *, validate: bool = False) -> None:
        super().__init__()
        self.accumulate = accumulate
        self.validate = validate

    def train_dataloader(self) -> Any:
        return build_loader(self.accumulate)

    def val_dataloader(self) -> Any:
        drawn, labels = inputs(1)
        return DataLoader(TensorDataset(drawn[:2], labels[:2]), batch_size=None) if self.validate else []


def scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", growth_interval=5)


def half() -> MixedPrecision:
    """Lightning replaces "16-mixed" on a CPU unless it is told so."""
    return MixedPrecision("16-mixed", "cpu", scaler=scaler())


class Asking(pl.Callback):
    """Asks, as a screen does, at the end of a step; stands before the callback that it asks."""

    def __init__(self, monitor: PrecisionMonitor, requests: dict[int, list[Request]]) -> None:
        self.monitor = monitor
        self.requests = requests

    def on_train_batch_end(self, trainer: pl.Trainer, *_: object) -> None:
        for request in self.requests.pop(trainer.global_step, []):
            assert self.monitor._run is not None
            ask(self.monitor._run, request)


def build_trainer(
    monitor: PrecisionMonitor | None = None, requests: dict[int, list[Request]] | None = None, **options: Any
) -> pl.Trainer:
    callbacks: list[Any] = [] if monitor is None else [Asking(monitor, requests or {}), monitor]
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    silent = dict.fromkeys(quiet, False)
    return pl.Trainer(
        accelerator="cpu",
        callbacks=[*options.pop("callbacks", []), *callbacks],
        **{**silent, "max_epochs": EPOCHS, **options},
    )


def fit(trainer: pl.Trainer, net: Any, *, validate: bool = False, ckpt_path: Any = None) -> list[Any]:
    """Train; return every number that the training left behind."""
    batches = Batches(trainer.accumulate_grad_batches, validate=validate)
    torch.manual_seed(2)  # for dropout
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice
        trainer.fit(net, batches, ckpt_path=ckpt_path)
    return state(net, trainer.optimizers[0])


def state(net: Any, optimizer: torch.optim.Optimizer) -> list[Any]:
    moments = [value for each in optimizer.state.values() for value in each.values()]
    tensors = [*net.parameters(), *[value for value in moments if torch.is_tensor(value)]]
    return [*[tensor.tolist() for tensor in tensors], torch.get_rng_state().tolist()]


class Handwritten:
    """The loop that Lightning's users would write, switching precisions by itself."""

    def __init__(self, *, accumulate: int, clip: float | None, **options: Any) -> None:
        self.net = Net(**options)
        self.scaler = scaler()
        self.losses: list[float] = []
        self.scales: list[float | None] = []
        self.skipped: list[int] = []
        self._accumulate = accumulate
        self._clip = clip

    def train(self) -> list[Any]:
        configured = self.net.configure_optimizers()
        if self.net.schedule:
            optimizer, schedule = configured["optimizer"], configured["lr_scheduler"]["scheduler"]
            after_step: Callable[[], object] = schedule.step
        else:
            optimizer, after_step = configured, lambda: None
        loader = build_loader(self._accumulate)
        torch.manual_seed(2)
        precision = ""
        for step in range(1, EPOCHS * STEPS_PER_EPOCH + 1):
            precision = SWITCHES.get(step, precision)
            if step % STEPS_PER_EPOCH == 1:
                batches = iter(loader)  # draws a seed
            taken = [next(batches) for _ in range(self._accumulate)]
            self._train_step(optimizer, precision, taken)
            after_step()  # Lightning's schedules go on when a step is skipped
        return state(self.net, optimizer)

    def _train_step(self, optimizer: torch.optim.Optimizer, precision: str, batches: list[Any]) -> None:
        scaler, scales, dtype = self.scaler, precision == "fp16", AUTOCAST.get(precision)
        before = scaler.get_scale()
        total = 0.0
        optimizer.zero_grad()
        for batch in batches:
            cast = torch.autocast("cpu", dtype=dtype, cache_enabled=False) if dtype else nullcontext()
            with cast:
                loss = self.net.loss(batch)
            loss = loss / self._accumulate
            (scaler.scale(loss) if scales else loss).backward()
            total += loss.item()
        if scales:
            scaler.unscale_(optimizer)
        if self._clip is not None:
            nn.utils.clip_grad_norm_(self.net.parameters(), self._clip)
        if scales:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        self.losses.append(total)
        self.scales.append(before if scales else None)
        if scales and scaler.get_scale() < before:
            self.skipped.append(len(self.losses))
