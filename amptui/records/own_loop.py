"""Records of what somebody else's training loop does beside its steps: new optimizers, dropped gradients."""

from dataclasses import dataclass
from typing import Literal

LossForm = Literal[
    "", "sum", "first closure", "no backward", "unattributed", "edited", "several values", "scaled"
]
"""What the loss of a step is, or why it has none.

Empty: of its one backward pass. ``sum``: of several passes. ``first closure``: of the first of several
closures that one step of the optimizer called. Without a loss: ``no backward``: its gradients came from no
``backward()`` (but from ``torch.autograd.grad``, or by hand). ``unattributed``: a pass may have given
gradients to some of its parameters, or to none. ``edited``: gradients were changed between two passes,
perhaps cleared. ``several values``: what was backpropagated is no single number. ``scaled``: somebody else
scaled it.
"""

FLOAT8_LAYERS = "float8 layers"

OTHER_PRECISIONS = ("fp16 weights", "bf16 weights", FLOAT8_LAYERS, "float64", "mixed", "unknown")
"""What a script's steps may run in beside the precisions that can be switched to: weights of another dtype,
float8 layers that the script has made itself, several precisions in one step, or one that cannot be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerFollowed:
    """Steps of another optimizer are watched from now on, beside the others or in place of one of them."""

    time: float
    optimizer: str
    """The name under which its steps are recorded; empty for the run's first."""
    step: int
    """How many steps were recorded under this name before."""
    kind: str
    """The class of the optimizer."""
    model: str
    """The class of the module whose parameters it changes."""
    parameters: int
    """How many numbers it trains."""
    replaces: str = ""
    """The class of the optimizer in whose place it came; empty if it came beside the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientsDropped:
    """A loop cleared gradients of a loss that is not finite, or unknown, before any step: a guarded skip."""

    time: float
    step: int
    """The last step made before."""
    loss: float | None
    """Of the passes whose gradients were cleared."""
    passes: int
    optimizer: str = ""
