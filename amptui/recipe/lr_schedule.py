"""The run's learning-rate schedule, which never advances after a skipped step.

On a GPU the host learns of a skipped step only later. So the learning rates of the next steps are in a table
on the device, which counts the applied steps itself and reads its row. The host waits for the device once in
so many steps as the table has, to make the next one.
"""

import copy
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from amptui.base.errors import ExperimentError
from amptui.device.failure import explain
from amptui.recipe.precision import ScalerTensors

TABLE_STEPS = 512
"""Rows of the device's table."""

MAX_GROUPS = 8
"""Parameter groups whose learning rates are reported."""

_TAKE_DEVICE_LR = (Adam, AdamW, SGD)
"""Their fused kernels read the learning rate from the device."""


class LearningRates(NamedTuple):
    """The learning rates that a step used."""

    first: float | None
    """Of the first parameter group; None if it has none, or if they are on the device."""
    groups: tuple[float, ...] = ()
    """Of all groups, if they differ."""
    on_device: Sequence[Tensor] = ()
    """Of all groups, if they are on the device."""


class LearningRateReader:
    """Reads an optimizer's learning rates; that of a single group costs nothing while it does not change."""

    def __init__(self) -> None:
        self._last = LearningRates(None)

    def read(self, optimizer: Optimizer) -> LearningRates:
        """Those of now."""
        groups = optimizer.param_groups
        first = groups[0].get("lr")
        if first is self._last.first and len(groups) == 1:
            return self._last  # the usual case without a schedule
        if first is None:
            return LearningRates(None)
        lrs = [group["lr"] for group in groups[:MAX_GROUPS]]
        if isinstance(first, Tensor) and not first.is_cpu:
            # Another group's may be a number: a row holds tensors only. The step, or a schedule, may write
            # them in place.
            return LearningRates(None, (), [lr.clone() for lr in lrs if isinstance(lr, Tensor)])
        numbers = tuple(map(float, lrs))
        read = LearningRates(numbers[0], numbers if numbers.count(numbers[0]) < len(numbers) else ())
        if type(first) is float and len(groups) == 1:
            self._last = read
        return read


class LrSchedule:
    """Advances a scheduler after each applied step, or after each epoch.

    ``on_device``: whether the device counts applied steps, so that the host never waits to learn whether one
    was skipped. That needs an optimizer whose fused kernel reads the learning rate from the device, and a
    scheduler that changes only the learning rate, not momentum for example.
    """

    def __init__(
        self,
        scheduler: LRScheduler,
        optimizer: Optimizer,
        *,
        interval: Literal["step", "epoch"],
        on_device: bool,
    ) -> None:
        if interval not in ("step", "epoch"):
            raise ExperimentError(
                f"scheduler_interval is {interval!r}", hint='set it to "step" or "epoch" in the experiment'
            )
        self._scheduler = scheduler
        self._optimizer = optimizer
        self.per_epoch = interval == "epoch"
        self.needs_metric = isinstance(scheduler, ReduceLROnPlateau)
        self._table: _DeviceTable | None = None
        self.reason_to_wait = ""
        """Why each step with a loss scale waits for the device; empty if none does."""
        if on_device and not self.per_epoch:
            takes_lr = isinstance(optimizer, _TAKE_DEVICE_LR) and optimizer.defaults.get("fused")
            if not takes_lr:
                self.reason_to_wait = f"{type(optimizer).__name__} cannot read its learning rate on the GPU"
            elif not all(isinstance(group.get("lr"), float | int) for group in optimizer.param_groups):
                self.reason_to_wait = "its learning rate is a tensor"
            elif self._look_ahead()[1]:
                self.reason_to_wait = f"{type(scheduler).__name__} changes more than the learning rate"
        self._may_follow = on_device and not self.per_epoch and not self.reason_to_wait
        if self.needs_metric and not self.per_epoch:
            raise ExperimentError(
                "build_scheduler() returned ReduceLROnPlateau, which needs a metric after each epoch",
                hint='set scheduler_interval = "epoch" in the experiment',
            )

    def before_update(self, *, scaled: bool) -> None:
        """Set the learning rates of the next update; if ``scaled``, the scaler may skip it."""
        if self._table is not None and self._table.sent == TABLE_STEPS - 1:  # the device may be at its end
            self.synchronize()
        if self._table is None and scaled and self._may_follow:
            self._table = _DeviceTable(self._optimizer, self._look_ahead()[0])
        if self._table is not None:
            self._table.set_lrs()

    def after_update(self, scaler: ScalerTensors | None) -> None:
        """Count a step, unless ``scaler`` skipped it."""
        if self._table is not None:
            self._table.count(scaler)
        elif not self.per_epoch and (scaler is None or not scaler.found_inf.item()):
            self._advance()

    def finish_epoch(self, metric: float | None) -> None:
        """Count an epoch; ``metric``: the validation loss, for a scheduler that needs it."""
        if self.per_epoch:
            self._advance(math.inf if metric is None else metric)

    def synchronize(self) -> None:
        """Step the host's scheduler as often as the device applied a step, for which this waits.

        The optimizer's learning rates are numbers then, until the next update that may be skipped.
        """
        table, self._table = self._table, None
        if table is not None:
            with _without_order_warning():
                for _ in range(table.remove()):
                    self._advance()

    def state_dict(self) -> dict[str, Any]:
        """The scheduler's state; waits for the device if that counts the steps."""
        self.synchronize()
        return dict(self._scheduler.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load another's :meth:`state_dict`; the learning rates are in the optimizer's."""
        self._scheduler.load_state_dict(state)

    def _advance(self, metric: float = math.inf) -> None:
        """Step the host's scheduler; raises ExperimentError, for one that has run past its end say."""
        try:
            if isinstance(self._scheduler, ReduceLROnPlateau):
                self._scheduler.step(metric)
            else:
                self._scheduler.step()
        except Exception as error:
            place = f"in {type(self._scheduler).__name__}.step(), which build_scheduler() returned"
            explained = explain(error, doing=place, batch_size=None)
            hint = "use the total_steps that build_scheduler() gets; it is None for data of unknown length"
            raise type(explained)(explained.what, hint=explained.hint or hint) from error

    def _look_ahead(self) -> tuple[list[list[float]], bool]:
        """The learning rates of the next steps, a row each, and whether the scheduler changes anything else.

        A copy of the scheduler computes them; then the optimizer's groups are restored.
        """
        groups = self._optimizer.param_groups
        with _without_order_warning():
            before = [_options(group) for group in groups]
            ahead = copy.deepcopy(self._scheduler, {id(self._optimizer): self._optimizer})
            rows, changes_more = [[float(group["lr"]) for group in groups]], False
            with suppress(Exception):  # some schedulers have a last step: the run ends before it
                for _ in range(TABLE_STEPS - 1):
                    ahead.step()
                    rows.append([float(group["lr"]) for group in groups])
                    changes_more |= any(
                        _options(group) | {"lr": 0.0} != options | {"lr": 0.0}
                        for group, options in zip(groups, before, strict=True)
                    )
            rows += [rows[-1]] * (TABLE_STEPS - len(rows))
            for group, options in zip(groups, before, strict=True):
                group.update(options)
        return rows, changes_more


class _DeviceTable:
    """Learning rates of the next steps, [TABLE_STEPS, groups] float32, and the next step's row, on a device.

    Each ``lr`` of the optimizer is a view of one tensor; before each step the row is copied into it.
    Everything is enqueued on the stream that computes the steps.
    """

    def __init__(self, optimizer: Optimizer, rows: list[list[float]]) -> None:
        self._groups = optimizer.param_groups
        device = next(p.device for group in self._groups for p in group["params"])
        self._rows = torch.tensor(rows, device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._applied = torch.empty(1, dtype=torch.bool, device=device)
        self._lrs = torch.empty(1, len(self._groups), device=device)
        self._numbers = [group["lr"] for group in self._groups]
        self.sent = 0
        """Steps sent to the device since the first row: its position is at most this."""
        for index, group in enumerate(self._groups):
            group["lr"] = self._lrs[0, index]

    def set_lrs(self) -> None:
        """Copy the device's row to where the optimizer reads it."""
        torch.index_select(self._rows, 0, self._position, out=self._lrs)

    def count(self, scaler: ScalerTensors | None) -> None:
        """Go to the next row unless the step was skipped."""
        if scaler is None:
            self._position.add_(1)
        else:  # no allocation: the weights have changed, and the step must not fail
            torch.eq(scaler.found_inf.reshape(1), 0, out=self._applied)
            self._position.add_(self._applied)
        self.sent += 1

    def remove(self) -> int:
        """Give the optimizer the first row's numbers; return the device's position, for which this waits."""
        for group, number in zip(self._groups, self._numbers, strict=True):
            group["lr"] = number
        return int(self._position.item())


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


@contextmanager
def _without_order_warning() -> Iterator[None]:
    """Suppress the warning about a scheduler that steps before the optimizer: the copy does."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step\\(\\)` before")
        yield
