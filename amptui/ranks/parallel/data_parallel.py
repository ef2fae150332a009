"""DDP around an experiment's loss: gradients, and with them the loss, are means over all ranks."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from amptui.base.errors import ExperimentError
from amptui.data.batches import Batch, Batches, count_samples
from amptui.engine.checkpoint.shards import Keys, Part, whole_room
from amptui.engine.failure import explain, is_device_lost
from amptui.engine.micro_batch import MicroBatch, weights
from amptui.engine.optimizer_step import OptimizerStep
from amptui.engine.precision_switch import TrialFailedError
from amptui.engine.probes.gradients import GradientProbe
from amptui.ranks.agreement.board import collectives_made
from amptui.ranks.failure import is_of_a_group
from amptui.ranks.group import RankGroup
from amptui.ranks.numbers.compute_timer import ComputeTimer
from amptui.ranks.numbers.own_overflows import OwnOverflows
from amptui.ranks.numbers.weights_check import WeightsCheck
from amptui.ranks.parallel.parallel_step import ParallelStep
from amptui.recipe.experiment import Experiment

R = TypeVar("R")

_SEED_STRIDE = 0x9E3779B97F4A7C15
"""An odd number: seeds of ranks and neighbouring seeds of runs do not meet."""


class DataParallel:
    """The loss of this rank's share of a global batch, with gradients averaged over all ranks.

    The model itself is not wrapped: its modules and parameters keep their names, and ``loss()`` may call any
    of its methods. The optimizer is built between the constructor and :meth:`join`.
    """

    needs_others = ""
    """Why a rank cannot run the model alone, as an X-ray does; "" if it can."""

    sharded: ClassVar[bool] = False
    """Whether each rank keeps only a part of the model: all of them have to run it at the same time."""

    optimizer_step: ClassVar[type[OptimizerStep]] = ParallelStep
    """What makes the steps of the run."""

    def __init__(self, group: RankGroup, experiment: Experiment, model: nn.Module) -> None:
        self.group = group
        self.world = group.world
        self._model = model
        self._experiment = experiment
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self.state: Mapping[str, Any] | None = None
        """The model's ``state_dict`` after the end, if the model itself no longer has it whole."""
        self.weights_check: WeightsCheck | None = None
        """Compares the weights with those of the other ranks; None where each has a part of its own."""
        self.compute_timer = ComputeTimer((), self._device)
        """Times nothing where forward and backward contain communication."""
        self.own_overflows = OwnOverflows((), self._device)
        self.on_trial = False
        """Whether the next step can fail on one rank, and must then be undone on all."""
        self._alone = False
        """Whether the gradients of this step are averaged only once all ranks have theirs."""
        if any(isinstance(module, nn.SyncBatchNorm) for module in model.modules()):
            self.needs_others = "SyncBatchNorm takes its statistics over all ranks"
        self.compiles_first = group.compiles and not self.needs_others
        """Whether the next step compiles, which may take one rank minutes longer than another."""

    def join(self, batches: tuple[Batches, Batches | None], unsupported: Collection[str]) -> None:
        """Give the model rank 0's weights, and average gradients from here on.

        From here on each rank draws its own random numbers. Raises DataError unless all ranks will take the
        same number of steps with the same parameters.
        """
        training, validation = batches
        self.group.meet("models")
        self.group.check_equal(
            {
                "parameters": sum(p.numel() for p in self._model.parameters()),
                "training samples": training.samples or 0,
                "batches per epoch": training.batches_per_epoch or 0,
                "as the checksum of its order of samples": training.checksum(),
                "validation samples": 0 if validation is None else validation.samples or 0,
                "unsupported precisions": len(unsupported),
            }
        )
        self._average()
        if not self.world.leads:  # rank 0 draws as a single process does
            torch.manual_seed((torch.initial_seed() + self.world.rank * _SEED_STRIDE) % (1 << 63))

    def _average(self) -> None:
        parameters = list(self._model.parameters())
        self._module = _Loss(self._model, self._experiment)
        self._ddp = DistributedDataParallel(self._module)
        self.weights_check = WeightsCheck(parameters, self._device, leads=self.world.leads)
        self.compute_timer = self._module.timer = ComputeTimer(parameters, self._device)
        self.own_overflows = OwnOverflows(parameters, self._device)

    def micro_batches(self, drawn: Sequence[Batch]) -> list[MicroBatch]:
        """An optimizer step of this rank's ``drawn`` batches, with the samples of all ranks.

        Only the last backward pass communicates: it averages what all of them have accumulated.
        """
        samples, last = [count_samples(batch) for batch in drawn], len(drawn) - 1
        return [
            MicroBatch(
                partial(self._compute_loss, batch, weigh, first=number == 0, last=number == last),
                samples[number] * self.world.size,
                batch,
            )
            for number, (batch, weigh) in enumerate(zip(drawn, weights(samples), strict=True))
        ]

    def _compute_loss(
        self, batch: Batch, weigh: Callable[[Tensor], Tensor], *, first: bool, last: bool
    ) -> object:
        """What ``loss()`` returns for this rank's batch; the step's loss counts ``weigh`` of it."""
        self.group.progress.batches += 1
        if first:
            self._module.mean.grad = None
        self._module.weigh, self._module.begins_step, self.compute_timer.ends_step = weigh, first, last
        if last and not self._alone:
            return self._ddp(batch)
        with self._ddp.no_sync():
            return self._ddp(batch)

    def on_rank_0(self, where: str, work: Callable[[], R]) -> R | None:
        """What ``work`` returns at rank 0, which must not communicate meanwhile: the others wait."""

        def work_alone() -> R:
            with _Alone():  # type: ignore[no-untyped-call]  # torch's own is not annotated
                return work()

        return self.group.on_rank_0(where, work_alone)

    def try_alone(self, run: Callable[[], R], *, undone: bool) -> R:
        """What ``run``, the forward and backward passes of a step, returns once all ranks have done theirs.

        Then averages the gradients. Raises TrialFailedError at all if it failed on one and can be ``undone``.
        """
        self._alone, trouble = True, ""
        try:
            made = run()
        except Exception as error:
            if not undone or is_of_a_group(error) or is_device_lost(error):
                raise
            trouble = str(explain(error, doing="in its first step", batch_size=self._experiment.batch_size))
            raise TrialFailedError(self.group.agree(trouble)) from error
        finally:
            self._alone = False
            # A pass that failed halfway leaves DDP without a decision: all give out buffers next time.
            self._ddp.require_forward_param_sync = True
        if trouble := self.group.agree(""):
            raise TrialFailedError(trouble)
        self._average_gradients()
        return made

    @torch.no_grad()
    def _average_gradients(self) -> None:
        """What DDP does after a backward pass, for the one that it did not see."""
        for parameter in self._module.parameters():
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)  # another rank may have one
                parameter.grad.div_(self.world.size)
                torch.distributed.all_reduce(parameter.grad)

    def evaluate(self, compute: Callable[[], R]) -> R:
        """What ``compute``, which runs the model without gradients, returns."""
        return compute()

    def take_mean_loss(self) -> Tensor | None:
        """The last step's loss, the mean over all ranks and micro-batches; on their device."""
        return self._module.mean.grad

    def tell_compiling(self, _compiling: bool) -> None:
        """The time it takes is none that this rank computes."""
        self.compute_timer.forget()

    def gradients(self, model: nn.Module) -> GradientProbe:
        """What measures the gradients of ``model``, on all ranks the same."""
        return GradientProbe(model)

    def synchronize_buffers(self) -> None:
        """Give all ranks rank 0's buffers, such as running means: each then validates the same model."""
        for buffer in self._model.buffers():
            torch.distributed.broadcast(buffer, src=0)

    def states(self, optimizer: Optimizer) -> tuple[dict[str, Any], dict[str, Any], list[Part]]:
        """The states of the model and of its ``optimizer``, and this rank's parts of what is divided.

        In place of a divided tensor the states have an empty one on the meta device. Waits for no other rank.
        """
        return self._model.state_dict(), optimizer.state_dict(), []

    def room(self, optimizer: Optimizer) -> Callable[[Keys, Tensor], Tensor]:  # noqa: ARG002
        """What makes room for a tensor of a checkpoint, which :meth:`load_states` is given then."""
        return whole_room

    def load_states(self, model: dict[str, Any], state: dict[str, Any], optimizer: Optimizer) -> None:
        """Load states of the model and of its ``optimizer``, whole or as :meth:`room` made them."""
        self._model.load_state_dict(model)
        optimizer.load_state_dict(state)

    def leave(self) -> None:
        """Part from the other ranks after the last step; a last checkpoint may follow, unless ``sharded``."""
        self.group.leave()


class _Loss(nn.Module):
    """An experiment's loss as a module, so that DDP sees its forward pass whatever ``loss()`` calls."""

    def __init__(self, model: nn.Module, experiment: Experiment) -> None:
        super().__init__()
        self.model = model
        self._experiment = experiment
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self.mean = nn.Parameter(torch.zeros((), device=device))
        """Its gradient is the loss: averaged with all others, at no cost of its own."""
        self.weigh: Callable[[Tensor], Tensor] = weights([1])[0]
        """What the next loss counts for among a step's micro-batches."""
        self.begins_step = True
        """Whether the next forward pass is the first of its step."""
        self.timer = ComputeTimer((), device)

    def forward(self, batch: Batch) -> object:
        # Not earlier: DDP has just waited for rank 0's buffers.
        if self.begins_step:
            self.timer.begin()
        collectives = collectives_made()
        result = self._experiment.loss(self.model, batch)
        if collectives_made() != collectives:
            self.timer.forget()  # it waits for other ranks by itself, as SyncBatchNorm does
        if isinstance(result, dict) and is_trainable(result.get("loss")):
            return {**result, "loss": LossAsGradient.apply(result["loss"], self.mean, self.weigh)}
        if is_trainable(result):
            return LossAsGradient.apply(result, self.mean, self.weigh)
        return result


class _Alone(TorchDispatchMode):
    """Raises ExperimentError instead of a collective, which would wait for ranks that never call it."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(func, OpOverload) and "c10d" in func.namespace:
            what = f"loss() communicates with other ranks ({func._opname.strip('_')})"
            raise ExperimentError(what, hint="rank 0 cannot compute it alone")
        return func(*args, **(kwargs or {}))


class LossAsGradient(torch.autograd.Function):
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


def is_trainable(loss: object) -> bool:
    """Whether backward may start there; what else is wrong with it is told later."""
    return isinstance(loss, Tensor) and loss.numel() == 1 and loss.requires_grad
