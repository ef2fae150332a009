"""Parameter groups and learning-rate schedules that many recipes share."""

import math
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from amptui.base.errors import ExperimentError


def weight_decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two parameter groups: weights of two and more dimensions decay; biases and norms do not.

    Frozen parameters are left out. Decaying the scales of norms and the biases only shrinks the signal
    (He et al., arXiv:1812.01187, section 3.1, "no bias decay").
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [each for each in trained if each.ndim >= 2], "weight_decay": weight_decay},
        {"params": [each for each in trained if each.ndim < 2], "weight_decay": 0.0},
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
        passed = min(1.0, (step - warmup_steps) / decay_steps)
        return min_lr_factor + (1 - min_lr_factor) * 0.5 * (1 + math.cos(math.pi * passed))

    return LambdaLR(optimizer, factor)
