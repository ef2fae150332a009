"""The one thing a model file fills in: what is trained, on what, and how its loss is computed.

Below it, the parameter groups and the learning-rate schedule that many model files share.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, dataclass_transform

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import default_collate

from amptui.base.errors import ExperimentError
from amptui.data.sources import Data, DataRequest
from amptui.data.vision import mnist


@dataclass_transform()
@dataclass
class Experiment:
    """A recipe for one training. Fields are options, methods are steps of the recipe.

    Every annotated field of a subclass becomes an option that ``--set name=value`` reaches; no decorator
    is needed. Only :meth:`build_model` must be written::

        class MyExperiment(Experiment):
            width: int = 64

            def build_model(self) -> nn.Module:
                return nn.Sequential(nn.Flatten(), nn.Linear(784, self.width), nn.ReLU(), ...)
    """

    epochs: int = 10
    batch_size: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    """Of the default optimizer; biases and norms do not decay."""
    label_smoothing: float = 0.0
    """Of the default loss in training; validation has none."""

    scheduler_interval: ClassVar[Literal["step", "epoch"]] = "step"
    """When the scheduler advances: after each applied step, or after each epoch's validation."""
    cpu_batch_size: ClassVar[int | None] = None
    """Used on a CPU instead of ``batch_size`` when the person gave none, because a step would take long."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclass(cls)

    def build_model(self) -> nn.Module:
        """The model, on any device; the trainer moves it."""
        raise NotImplementedError

    def build_optimizer(self, model: nn.Module) -> Optimizer:
        """Adam over all parameters, or AdamW if ``weight_decay`` is set; fused.

        A fused optimizer is one kernel, and the host does not wait to learn of a skipped step.
        """
        if not self.weight_decay:
            return torch.optim.Adam(model.parameters(), lr=self.learning_rate, fused=True)
        groups = weight_decay_groups(model, self.weight_decay)
        return torch.optim.AdamW(groups, lr=self.learning_rate, fused=True)

    def build_scheduler(
        self,
        optimizer: Optimizer,  # noqa: ARG002
        total_steps: int | None,  # noqa: ARG002
    ) -> LRScheduler | None:
        """No schedule: the learning rate is constant. Any scheduler of ``torch.optim.lr_scheduler`` will do.

        ``total_steps``: the optimizer steps of the whole run; None where the data does not know its length.
        The scheduler never advances after a step that the loss scaler skipped. ``ReduceLROnPlateau`` needs
        ``scheduler_interval = "epoch"``; it gets the validation loss, or without validation the mean loss.
        """
        return None

    def load_data(self, request: DataRequest) -> Data:
        """MNIST, or its synthetic stand-in."""
        return mnist(request)

    def collate_fn(self, samples: list[Any]) -> Any:
        """A batch of a Dataset's samples, made in a worker if there are any; a DataLoader has its own."""
        return default_collate(samples)

    def loss(self, model: nn.Module, batch: Any) -> Tensor | dict[str, Tensor]:
        """Cross entropy of ``model(inputs)`` against class indices.

        The class indices are smoothed by ``label_smoothing`` while the model trains. Runs inside the
        precision's autocast. A scalar tensor; or a dict whose ``"loss"`` is the total and
        whose other entries are parts, each shown with a curve of its own.
        """
        inputs, targets = batch
        smoothing = self.label_smoothing if model.training else 0.0
        return functional.cross_entropy(model(inputs), targets, label_smoothing=smoothing)

    def after_step(self, model: nn.Module) -> None:
        """Nothing. Called after each optimizer step under ``torch.no_grad()``, to average weights say.

        Also after a step that the loss scaler skipped, which left the weights unchanged: a GPU reports that
        too late. What an attribute of the experiment keeps is part of the checkpoints if it has
        ``state_dict()`` and ``load_state_dict()``, as ``torch.optim.swa_utils.AveragedModel`` does.
        """

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        """Means over one validation batch; ``"accuracy"`` as a fraction of one.

        A ``"loss"`` in the answer saves the trainer a call of :meth:`loss`.
        """
        inputs, targets = batch
        outputs = model(inputs)
        means = {"accuracy": (outputs.argmax(dim=1) == targets).float().mean()}
        if type(self).loss is Experiment.loss:
            means["loss"] = functional.cross_entropy(outputs, targets)
        return means


def weight_decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two parameter groups: weights of two and more dimensions decay; biases and norms do not.

    Frozen parameters are left out. Decaying the scales of norms and the biases only shrinks the signal
    (He et al., arXiv:1812.01187, section 3.1, "no bias decay").
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]


def warmup_cosine(
    optimizer: Optimizer, total_steps: int | None, *, warmup_steps: int, min_lr_factor: float = 0.0
) -> LambdaLR:
    """Linear LR warm-up over ``warmup_steps`` steps, then cosine decay.

    The decay ends at ``min_lr_factor`` times the learning rate after ``total_steps`` steps (Loshchilov and
    Hutter, arXiv:1608.03983, without restarts). A run resumed with another length continues on the cosine of
    its new length. Raises ExperimentError where the length of the run is not known.
    """
    if total_steps is None:
        raise ExperimentError("warmup_cosine() needs the length of the run", hint="use --steps N")
    decay_steps = max(1, total_steps - warmup_steps)

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + 1)
        progress = min(1.0, (step - warmup_steps) / decay_steps)
        return min_lr_factor + (1 - min_lr_factor) * 0.5 * (1 + math.cos(math.pi * progress))

    return LambdaLR(optimizer, factor)
