"""DDP around an experiment's loss: gradients are means over all ranks, and each rank gets all losses."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from time import perf_counter
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from amptui.data.batches import Batch, Batches, count_samples
from amptui.device.accelerator import capabilities
from amptui.device.failure import explain, is_device_lost
from amptui.loops.strategy import MetricSums, MicroBatch, Strategy
from amptui.monitor.precision_switch import TrialFailedError
from amptui.monitor.step_rows import Step
from amptui.ranks.agreement.board import collectives_by_group
from amptui.ranks.failure import is_of_a_group
from amptui.ranks.group import RankGroup
from amptui.recipe.experiment import Experiment

R = TypeVar("R")

_SEED_STRIDE = 0x9E3779B97F4A7C15
"""An odd number: seeds of ranks and neighbouring seeds of runs do not meet."""

_ALL_GATHER_NAMES = ("all_gather_single", "all_gather_into_tensor")
"""One collective: torch 2.14 introduced the first name and warns of the second, which is all that 2.9 has."""


class DataParallel(Strategy):
    """The loss of this rank's share of a global batch, with gradients averaged over all ranks.

    The model itself is not wrapped: its modules and parameters keep their names, and ``loss()`` may call any
    of its methods. The optimizer is built between the constructor and :meth:`join`.
    """

    kind: ClassVar[str] = "ddp"

    def __init__(self, group: RankGroup, experiment: Experiment, model: nn.Module) -> None:
        super().__init__(experiment, model)
        self.share = group.share
        self._group = group
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self.compute_timer = ComputeTimer((), self._device)
        """Times nothing where forward and backward contain communication."""
        self._losses = torch.zeros(self.ranks, device=self._device)
        """The newest of each rank."""
        self._arrival: Any = None
        self._alone = False
        """Whether the gradients of this step are averaged only once all ranks have theirs."""
        self._validation_batches: list[int] = []
        """How many each rank has."""
        if any(isinstance(module, nn.SyncBatchNorm) for module in model.modules()):
            self.needs_others = True
        self.compiles_first = group.compiles and not self.needs_others
        """Whether the next step compiles, which may take one rank minutes longer than another."""

    def join(self, batches: tuple[Batches, Batches | None], unsupported: Collection[str]) -> None:
        """Give the model rank 0's weights, and average gradients from here on.

        From here on each rank draws its own random numbers. Raises DataError unless all ranks will take the
        same number of steps with the same parameters.
        """
        training, validation = batches
        self._group.meet("models")
        self._group.check_equal(
            {
                "parameters": sum(p.numel() for p in self._model.parameters()),
                "training samples": training.samples or 0,
                "batches per epoch": training.batches_per_epoch or 0,
                "validation samples": 0 if validation is None else validation.samples or 0,
                "unsupported precisions": len(unsupported),
            }
        )
        self._average()
        if not self.leads:  # rank 0 draws as a single process does
            torch.manual_seed((torch.initial_seed() + self.share.rank * _SEED_STRIDE) % (1 << 63))

    def _average(self) -> None:
        self._root = LossRoot(self._model)
        self._ddp = DistributedDataParallel(self._root)
        self.compute_timer = ComputeTimer(self._model.parameters(), self._device)

    def micro_batches(self, step_batches: Sequence[Batch]) -> list[MicroBatch]:
        """See :class:`Strategy`; only the last backward pass communicates: it averages all of them."""
        last = len(step_batches) - 1
        return [
            MicroBatch(
                partial(self._compute_loss, batch, first=number == 0, last=number == last),
                count_samples(batch) * self.ranks,
                batch,
            )
            for number, batch in enumerate(step_batches)
        ]

    def _compute_loss(self, batch: Batch, *, first: bool, last: bool) -> object:
        """What ``loss()`` returns for this rank's batch."""
        self._group.progress.batches += 1
        return self._run(batch, first=first, last=last)

    def _run(self, batch: Batch, *, first: bool, last: bool) -> object:
        def timed_loss() -> object:
            # Not earlier: DDP has just waited for rank 0's buffers.
            if first:
                timer.begin()
            collectives = collectives_by_group()
            result = self._loss(batch)
            if collectives_by_group() != collectives:
                timer.forget()  # it waits for other ranks by itself, as SyncBatchNorm does
            return result

        timer = self.compute_timer
        timer.ends_step = last
        with nullcontext() if last and not self._alone else self._ddp.no_sync():
            return self._ddp(timed_loss)

    def run_passes(self, passes: Callable[[], object], observed_step: int | None) -> None:
        # Without a measurement it is a resumed run's first step, which has compiled before.
        undone, compiles = self.on_trial, self.compiles_first and observed_step is not None
        self.on_trial = self.compiles_first = False
        if undone or compiles:
            self.try_alone(passes, undone=undone)
        else:
            passes()

    def send_loss(self, step: Step) -> None:
        assert isinstance(step.loss, Tensor), "the passes have called backward()"
        own = step.loss.detach().float().reshape(1)
        # The row of the step before was read on this stream: its memory is free.
        self._arrival = all_gather(self._losses, own, waits=False)

    def receive_losses(self, step: Step) -> None:
        self._arrival.wait()
        step.loss = self._losses.mean()
        step.rank_losses = self._losses if self.leads else None

    def try_alone(self, run: Callable[[], R], *, undone: bool) -> R:
        """What ``run``, the forward and backward passes of a step, returns once all ranks have done theirs.

        Then averages the gradients. Raises TrialFailedError at all if it failed on one and can be ``undone``.
        """
        self._alone, trouble = True, ""
        try:
            result = run()
        except Exception as error:
            if not undone or is_of_a_group(error) or is_device_lost(error):
                raise
            trouble = str(explain(error, doing="in its first step", batch_size=self._experiment.batch_size))
            raise TrialFailedError(self._group.agree(trouble)) from error
        finally:
            self._alone = False
            # A pass that failed halfway leaves DDP without a decision: all give out buffers next time.
            self._ddp.require_forward_param_sync = True
        if trouble := self._group.agree(""):
            raise TrialFailedError(trouble)
        with torch.no_grad():  # what DDP does after a backward pass, for the one that it did not see
            for parameter in [p for p in self._root.parameters() if p.requires_grad]:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)  # another rank may have one
                parameter.grad.div_(self.ranks)
                dist.all_reduce(parameter.grad)
        return result

    def tell_compiling(self, compiling: bool) -> None:  # noqa: ARG002 - both are left out
        self.compute_timer.forget()

    def agree(self, trouble: str) -> str:
        """See :class:`Strategy`; the rank is named."""
        return self._group.agree(trouble)

    def validation_batches(self, limit: int | None, total: int | None) -> tuple[int | None, int | None]:
        """See :class:`Strategy`; the ranks take batches in turn."""
        self._validation_batches = self._validation_batches or self._group.gather(total or 0)
        everybody = sum(self._validation_batches)
        wanted = everybody if limit is None else min(limit, everybody)
        own = -(-max(0, wanted - self.share.rank) // self.ranks)
        return own, min(-(-wanted // self.ranks), max(self._validation_batches))

    def padded(self, batches: Iterator[Batch], count: int | None, no_batch: object) -> Iterator[object]:
        for _ in range(count or 0):
            yield next(batches, no_batch)

    def sum_over_ranks(self, sums: MetricSums) -> MetricSums:
        """See :class:`Strategy`; waits for all."""
        return sums.over_ranks(self._group.gather)

    def synchronize_buffers(self) -> None:
        for buffer in self._model.buffers():
            dist.broadcast(buffer, src=0)

    def leave(self) -> None:
        self._group.leave()


class ComputeTimer:
    """Times from the start of a forward pass to the gradient that comes last, before the all-reduce ends.

    Call :meth:`begin` as a step's first forward pass begins, after any wait for other ranks; a hook of the
    first parameter ends the time, since the backward pass comes to it last. A CPU is timed in all steps, by
    the host's clock. On a GPU two events around the work of one step are recorded, the host's clock knows
    nothing of it; the next step is timed after they have been read. Nobody waits for the device.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], device: torch.device) -> None:
        self._device = device
        self._begin_time: float | None = None
        self._seconds, self._steps = 0.0, 0
        self._events: tuple[torch.Event, torch.Event] | None = None
        """On the stream that computes, at the start and the end of a step."""
        if capabilities(device).timed_events:
            self._events = torch.Event(device, enable_timing=True), torch.Event(device, enable_timing=True)
        self._stream: Any = None
        self._is_wanted = True
        """Whether the next step is to be timed by events."""
        self._has_begun = self._has_ended = False
        self.ends_step = True
        """Whether the next backward pass is the last of its step: it alone ends the time."""
        first = next((parameter for parameter in parameters if parameter.requires_grad), None)
        if first is not None:
            first.register_post_accumulate_grad_hook(self._end)

    def begin(self) -> None:
        """The first forward pass of a step begins."""
        if self._events is None:
            self._begin_time = perf_counter()
        elif self._is_wanted:
            self._is_wanted, self._has_begun = False, True
            # The backward pass runs in another thread, which may have another current stream.
            self._stream = torch.accelerator.current_stream(self._device.index)
            self._events[0].record(self._stream)

    def forget(self) -> None:
        """Do not count the step under way."""
        self._begin_time = None
        if self._has_begun:
            self._has_begun, self._is_wanted = False, True

    def take_seconds(self) -> float | None:
        """The mean over the steps timed since the last call; None without any."""
        if self._events is not None and self._has_ended:
            start, end = self._events
            if not end.query():
                return None
            self._seconds, self._steps = start.elapsed_time(end) / 1000, 1
        self._is_wanted, self._has_begun, self._has_ended = True, False, False
        seconds, steps = self._seconds, self._steps
        self._seconds, self._steps = 0.0, 0
        return seconds / steps if steps else None

    def _end(self, _parameter: Tensor) -> None:
        if not self.ends_step:
            return
        if self._has_begun and self._events is not None:
            self._has_begun, self._has_ended = False, True
            self._events[1].record(self._stream)
        elif self._begin_time is not None:
            self._seconds += perf_counter() - self._begin_time
            self._steps += 1
            self._begin_time = None


class LossRoot(nn.Module):
    """What DDP or FSDP sees as the model, whatever methods of the model itself a loss calls."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[], R]) -> R:
        return compute()


def all_gather(rows: Tensor, own_row: Tensor, *, waits: bool = True) -> Any:
    """Fill ``rows``, [ranks * n], with the ``own_row``, [n], of each rank. All have to call it.

    Returns what there is to wait for, if it does not wait itself.
    """
    gather = next(getattr(dist, name) for name in _ALL_GATHER_NAMES if hasattr(dist, name))
    return gather(rows, own_row, async_op=not waits)
