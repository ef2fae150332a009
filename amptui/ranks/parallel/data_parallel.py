"""DDP around an experiment's loss: gradients, and with them the loss, are means over all ranks."""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from time import perf_counter
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from amptui.data.batches import Batch, Batches, count_samples
from amptui.device.accelerator import capabilities
from amptui.device.failure import explain, is_device_lost
from amptui.loops.strategy import MetricSums, MicroBatch, Strategy
from amptui.monitor.precision_switch import TrialFailedError
from amptui.ranks.agreement.board import collectives_by_group
from amptui.ranks.failure import is_of_a_group
from amptui.ranks.group import RankGroup
from amptui.recipe.experiment import Experiment
from amptui.recipe.trained import loss_weights

R = TypeVar("R")

_SEED_STRIDE = 0x9E3779B97F4A7C15
"""An odd number: seeds of ranks and neighbouring seeds of runs do not meet."""

_KEPT_STEPS = 512
"""More than are in flight between the host and the device."""

_KEPT_BAD_STEPS = 128


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
        self.own_losses = OwnLosses(self._device)
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
        self._root = LossRoot(self._model, ())
        self._mean = self._root.loss.mean
        self._ddp = DistributedDataParallel(self._root)
        self.compute_timer = ComputeTimer(self._model.parameters(), self._device)

    def micro_batches(self, step_batches: Sequence[Batch]) -> list[MicroBatch]:
        """See :class:`Strategy`; only the last backward pass communicates: it averages all of them."""
        samples, last = [count_samples(batch) for batch in step_batches], len(step_batches) - 1
        return [
            MicroBatch(
                partial(self._compute_loss, batch, weigh, first=number == 0, last=number == last),
                samples[number] * self.ranks,
                batch,
            )
            for number, (batch, weigh) in enumerate(zip(step_batches, loss_weights(samples), strict=True))
        ]

    def _compute_loss(
        self, batch: Batch, weigh: Callable[[Tensor], Tensor], *, first: bool, last: bool
    ) -> object:
        """What ``loss()`` returns for this rank's batch; the step's loss counts ``weigh`` of it."""
        self._group.progress.batches += 1
        if first:
            self._mean.grad = None
        self._root.loss.weigh = weigh
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
        self.own_losses.step = self.own_losses.step + 1 if observed_step is None else observed_step
        # Without a measurement it is a resumed run's first step, which has compiled before.
        undone, compiles = self.on_trial, self.compiles_first and observed_step is not None
        self.on_trial = self.compiles_first = False
        if undone or compiles:
            self.try_alone(passes, undone=undone)
        else:
            passes()

    def mean_loss(self, loss: Tensor) -> Tensor:
        self.own_losses.keep(loss)
        mean = self._mean_gradient()
        return loss if mean is None else mean

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
                torch.distributed.all_reduce(parameter.grad)
        return result

    def _mean_gradient(self) -> Tensor | None:
        """The last step's loss, the mean over all ranks and micro-batches; on their device."""
        return self._mean.grad

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
            torch.distributed.broadcast(buffer, src=0)

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


class OwnLosses:
    """Keeps a rank's losses of its last steps on the device, and reads one after trouble.

    DDP averages gradients before anybody checks them: one rank's NaN reaches all. Its own loss tells whose.
    Of the trainer's thread: :meth:`keep` after each ``step``, :meth:`judge` when the numbers of a step have
    arrived and show trouble, so that nobody has to wait for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._has_streams = capabilities(device).timed_events
        self._side_stream: torch.Stream | None = None
        self._losses: deque[tuple[int, Tensor]] = deque(maxlen=_KEPT_STEPS)
        self.step = self.judged_step = 0
        """The step that is made, and the newest that was judged."""
        self.bad_steps: deque[int] = deque(maxlen=_KEPT_BAD_STEPS)
        """The newest in which it was NaN or Inf."""
        self.bad_count: int | None = None
        """How many those were; None before a step was judged."""

    def keep(self, loss: Tensor) -> None:
        """The step was sent to the device; ``loss`` is the rank's own."""
        self._losses.append((self.step, loss.detach()))

    def judge(self, step: int) -> None:
        """Find out whether the trouble of ``step`` was in this rank's loss; its numbers have arrived."""
        loss = next((loss for at, loss in reversed(self._losses) if at == step), None)
        if loss is None or step <= self.judged_step:
            return
        self.judged_step, self.bad_count = step, self.bad_count or 0
        if not math.isfinite(self._read(loss)):
            self.bad_count += 1
            self.bad_steps.append(step)

    def _read(self, value: Tensor) -> float:
        """A value that the device has computed already: the work of later steps is not waited for."""
        if value.is_cpu or not self._has_streams:
            return float(value.item())
        if self._side_stream is None:
            self._side_stream = torch.Stream(self._device)
        with self._side_stream:
            return float(value.item())


class LossRoot(nn.Module):
    """What DDP or FSDP sees as the model, whatever methods of the model itself a loss calls.

    The gradient of ``loss.mean``, of that ``shape``, is the mean loss of all ranks, at no cost of its own.
    """

    def __init__(self, model: nn.Module, shape: Sequence[int]) -> None:
        super().__init__()
        self.model = model
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self.loss = _MeanLoss(nn.Parameter(torch.zeros(shape, device=device)))

    def forward(self, compute: Callable[[], object]) -> object:
        result = compute()
        loss = result.get("loss") if isinstance(result, dict) else result
        if not (isinstance(loss, Tensor) and loss.numel() == 1 and loss.requires_grad):
            return result  # backward cannot start there
        loss = self.loss(loss)
        return {**result, "loss": loss} if isinstance(result, dict) else loss


class _MeanLoss(nn.Module):
    """Passes a loss through."""

    def __init__(self, mean: nn.Parameter) -> None:
        super().__init__()
        self.mean = mean
        self.weigh: Callable[[Tensor], Tensor] = loss_weights([1])[0]
        """What the next loss counts for among a step's micro-batches."""

    def forward(self, loss: Tensor) -> Tensor:
        same_loss: Tensor = _LossAsGradient.apply(loss, self.mean, self.weigh)
        return same_loss


class _LossAsGradient(torch.autograd.Function):
    """The loss unchanged; backward gives ``mean`` its share as a gradient, whatever the loss scale."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, mean: Tensor, weigh: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(loss)
        ctx.of_mean, ctx.weigh = mean, weigh
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (loss,) = ctx.saved_tensors
        share = ctx.weigh(loss.detach()).reshape(()).to(ctx.of_mean)
        return gradients[0], share.expand_as(ctx.of_mean).contiguous(), None
