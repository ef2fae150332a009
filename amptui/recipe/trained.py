"""What is trained, as probes and the precision switch know it, whoever's loop it is."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from amptui.recipe.experiment import Experiment
from amptui.recipe.precision import Precision

if TYPE_CHECKING:
    from amptui.monitor.lr_schedule import LrSchedule


class Trained(Protocol):
    """The model, its optimizer, and the precisions in which it can be trained."""

    @property
    def device(self) -> torch.device:
        """Where the model is."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def optimizer(self) -> Optimizer: ...

    @property
    def experiment(self) -> Experiment:
        """Its ``loss()`` runs a forward pass again."""

    @property
    def batch_size(self) -> int | None:
        """What a hint may advise to reduce; None if amptui does not set it."""

    @property
    def precisions(self) -> Mapping[str, Precision]: ...

    @property
    def precision(self) -> str:
        """The first one."""

    @property
    def amp_precision(self) -> str:
        """What AMP means: ``fp16`` or ``bf16``."""

    @property
    def unsupported(self) -> Mapping[str, str]:
        """Those that the device does not support, each with the reason."""

    @property
    def lr_schedule(self) -> "LrSchedule | None":
        """None also if the script has its own."""

    @property
    def probes(self) -> bool:
        """Whether to probe gradients and modules."""

    @property
    def max_rounds(self) -> int | None:
        """The limit on rounds of an A/B test; None uses the default."""
