"""The run's learning-rate schedule: it never advances after a skipped step and never waits for the device.

On a GPU the host learns of a skipped step only later. There the learning rates of the next steps lie in a
table on the device, and the device itself counts the applied steps and reads its row.
"""

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from amptui.engine.precision import ScalerTensors
from amptui.errors import ExperimentError

TABLE_STEPS = 512
"""Rows of the device's table."""

REFILL_STEPS = 128
"""The table is made anew after so many steps: what the host computes at once is as little as that."""

MAX_GROUPS = 8
"""The learning rates of so many parameter groups are reported."""

_TAKE_DEVICE_LR = (Adam, AdamW, SGD)
"""Their fused kernels read a learning rate from the device."""


class LrSchedule:
    """Advances a scheduler after each applied step, or after each epoch.

    ``on_device``: whether steps with a loss scale are followed on the device, so that the host never waits to
    learn whether one was skipped. That needs an optimizer whose fused kernel reads the learning rate there,
    and a scheduler that changes nothing else, as momentum.
    """

    def __init__(
        self,
        scheduler: LRScheduler,
        optimizer: Optimizer,
        *,
        interval: Literal["step", "epoch"],
        on_device: bool,
    ) -> None:
        self._scheduler = scheduler
        self._optimizer = optimizer
        self.per_epoch = interval == "epoch"
        self.needs_metric = isinstance(scheduler, ReduceLROnPlateau)
        self._table: _DeviceTable | None = None
        self.reason_to_wait = "" if self.per_epoch or not on_device else self._reason_to_wait()
        """Why each step with a loss scale waits for the device, in words; empty if none does."""
        self._may_follow = on_device and not self.per_epoch and not self.reason_to_wait
        if self.needs_metric and not self.per_epoch:
            raise ExperimentError(
                "build_scheduler() returned ReduceLROnPlateau, which needs a metric after each epoch",
                hint='set scheduler_interval = "epoch" in the experiment',
            )

    @property
    def follows_on_device(self) -> bool:
        """Whether the device counts the applied steps."""
        return self._table is not None

    def before_update(self, *, scaled: bool) -> None:
        """Set the learning rates of the step that is about to be made; if ``scaled``, it may be skipped."""
        if self._table is None:
            if not (scaled and self._may_follow):
                return
            rows, _ = self._look_ahead()
            self._table = _DeviceTable(self._optimizer, rows)
        elif self._table.is_used_up:
            self.synchronize()
        self._table.set_lrs()

    def after_update(self, scaler: ScalerTensors | None) -> None:
        """Count a step, unless ``scaler`` skipped it."""
        if self._table is not None:
            self._table.count(scaler)
        elif not self.per_epoch and (scaler is None or not scaler.found_inf.item()):
            self._scheduler.step()

    def finish_epoch(self, metric: float | None) -> None:
        """Count an epoch; ``metric``: the validation loss, for a scheduler that needs it."""
        if not self.per_epoch:
            return
        if isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step(float("inf") if metric is None else metric)
        else:
            self._scheduler.step()

    @property
    def applied_wanted(self) -> Tensor | None:
        """The device's count of applied steps, 0-dimensional, if the table is to be refilled; else None."""
        return None if self._table is None else self._table.ask()

    def refill(self, applied: float) -> None:
        """Continue the table from the row that the device was at when it was asked: ``applied`` steps on."""
        if self._table is not None and self._table.was_asked:
            self._continue_after(round(applied))

    def synchronize(self) -> None:
        """Bring the host's scheduler to where the device is; waits for the device."""
        if self._table is not None:
            self._continue_after(self._table.applied())

    @contextmanager
    def as_numbers(self) -> Iterator[None]:
        """The optimizer's learning rates as numbers within, as the host's scheduler left them."""
        if self._table is None:
            yield
            return
        with self._table.out_of_the_way():
            yield

    def state_dict(self) -> dict[str, Any]:
        """The scheduler's; waits for the device where that counts."""
        self.synchronize()
        return dict(self._scheduler.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from another's :meth:`state_dict`; the optimizer's state holds the learning rates."""
        self._scheduler.load_state_dict(state)

    def _reason_to_wait(self) -> str:
        optimizer, name = self._optimizer, type(self._scheduler).__name__
        if not isinstance(optimizer, _TAKE_DEVICE_LR) or not optimizer.defaults.get("fused"):
            return f"{type(optimizer).__name__} cannot read its learning rate on the GPU"
        if not all(isinstance(group.get("lr"), float | int) for group in optimizer.param_groups):
            return "its learning rate is a tensor"
        _, changes_more = self._look_ahead()
        return f"{name} changes more than the learning rate" if changes_more else ""

    def _continue_after(self, applied: int) -> None:
        """Step the host's scheduler ``applied`` times, and make the table anew from there."""
        table = self._table
        assert table is not None, "only a device's table is followed"
        with table.out_of_the_way(), _without_order_warning():
            for _ in range(applied):
                self._scheduler.step()
            table.keep_numbers()
        rows, _ = self._look_ahead()
        table.refill(rows, passed=applied)

    def _look_ahead(self) -> tuple[list[list[float]], bool]:
        """The learning rates of the next steps, a row each, and whether the scheduler changes anything else.

        A copy of the scheduler runs ahead; the optimizer's groups are put back as they were.
        """
        groups = self._optimizer.param_groups
        with self.as_numbers(), _without_order_warning():
            before = [_options(group) for group in groups]
            twin = copy.deepcopy(self._scheduler, {id(self._optimizer): self._optimizer})
            rows, changes_more = [[float(group["lr"]) for group in groups]], False
            with suppress(Exception):  # some may be stepped only so often: the run does not get there
                for _ in range(TABLE_STEPS - 1):
                    twin.step()
                    rows.append([float(group["lr"]) for group in groups])
                    changes_more |= any(map(_differ, groups, before))
            rows += [rows[-1]] * (TABLE_STEPS - len(rows))
            for group, options in zip(groups, before, strict=True):
                group.update(options)
        return rows, changes_more


class _DeviceTable:
    """Learning rates of the next steps, [TABLE_STEPS, groups] float32, and the next step's row, on a device.

    The optimizer's ``lr`` are views of one tensor that the row is copied into before each step. Everything is
    enqueued on the stream that computes the steps.
    """

    def __init__(self, optimizer: Optimizer, rows: list[list[float]]) -> None:
        self._groups = optimizer.param_groups
        device = next(p.device for group in self._groups for p in group["params"])
        self._rows = torch.tensor(rows, device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._applied = torch.empty(1, dtype=torch.bool, device=device)
        self._lrs = torch.empty(1, len(self._groups), device=device)
        self._numbers = [float(group["lr"]) for group in self._groups]
        self._sent = 0
        """Steps sent to the device since the first row: it is at most there."""
        self._asked_at: int | None = None
        self._install()

    @property
    def is_used_up(self) -> bool:
        """Whether the device may have come to the end of the table."""
        return self._sent >= len(self._rows) - 1

    @property
    def was_asked(self) -> bool:
        """Whether the answer to :meth:`ask` is still awaited."""
        return self._asked_at is not None

    def set_lrs(self) -> None:
        """Copy the device's row to where the optimizer reads it."""
        torch.index_select(self._rows, 0, self._position, out=self._lrs)

    def count(self, scaler: ScalerTensors | None) -> None:
        """Go to the next row unless the step was skipped."""
        if scaler is None:
            self._position.add_(1)
        else:  # nothing asks for memory here: the weights have changed, and the step must not fail
            torch.eq(scaler.found_inf.reshape(1), 0, out=self._applied)
            self._position.add_(self._applied)
        self._sent += 1

    def ask(self) -> Tensor | None:
        """The position as float32, if it is time to refill and nobody has asked yet."""
        if self._sent < REFILL_STEPS or self._asked_at is not None:
            return None
        self._asked_at = self._sent
        return self._position[0].float()

    def applied(self) -> int:
        """The row that the device is at; waits for it."""
        self._asked_at = self._sent
        return int(self._position.item())

    def refill(self, rows: list[list[float]], *, passed: int) -> None:
        """``rows`` follow on the first ``passed`` rows of the old ones, which are dropped."""
        sent_since = self._sent - (self._asked_at or 0)
        fresh = torch.tensor(rows, pin_memory=self._rows.is_cuda)
        self._rows = fresh.to(self._rows.device, non_blocking=True)
        self._position.sub_(passed)
        self._sent, self._asked_at = sent_since, None

    def keep_numbers(self) -> None:
        """The optimizer's learning rates, numbers now, are those of the first row from now on."""
        self._numbers = [float(group["lr"]) for group in self._groups]

    @contextmanager
    def out_of_the_way(self) -> Iterator[None]:
        """The optimizer's learning rates are the first row's numbers within."""
        for group, number in zip(self._groups, self._numbers, strict=True):
            group["lr"] = number
        try:
            yield
        finally:
            self._install()

    def _install(self) -> None:
        for index, group in enumerate(self._groups):
            group["lr"] = self._lrs[0, index]


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _differ(group: dict[str, Any], options: dict[str, Any]) -> bool:
    """Whether a group differs from its former ``options`` in more than the learning rate."""
    return _options(group) | {"lr": 0.0} != options | {"lr": 0.0}


@contextmanager
def _without_order_warning() -> Iterator[None]:
    """No warning of a scheduler that steps before the optimizer: its copy runs ahead."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step\\(\\)` before")
        yield
