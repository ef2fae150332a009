"""What a generated training loop does, as data: one interpreter runs it, and its repr names it."""

from dataclasses import dataclass, field
from typing import Any, Literal

Shape = Literal[
    "plain",
    "adversarial",
    "SAM",
    "SAM class",
    "closure",
    "LBFGS",
    "side by side",
    "two parts",
    "GAN",
    "WGAN",
]
"""How passes and steps follow each other in one iteration; see ``loop_shapes``."""

Extra = Literal["evaluation", "teacher", "EMA", "frozen layer"]
"""What a loop does besides: an evaluation after each step and a teacher's forward pass, both without
gradients and in another precision; a moving average of the weights; and a first layer that is not trained."""

Dtype = Literal["float32", "float64", "bfloat16", "float16"]
ClearingTime = Literal["before forward", "before backward", "after step"]
Around = Literal["forward", "forward and loss", "decorator", "whole loop"]
Checkpoints = Literal["none", "reentrant", "not reentrant"]
Replaced = Literal["nothing", "optimizer", "model"]


class ShownByChanges:
    """A dataclass whose repr shows only what differs from the usual: a shrunk plan is read at a glance."""

    def __repr__(self) -> str:
        usual = vars(type(self)())
        changed = [f"{name}={value!r}" for name, value in vars(self).items() if value != usual[name]]
        return f"{type(self).__name__}({', '.join(changed)})"

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(repr(self))


@dataclass(frozen=True, repr=False)
class Clearing(ShownByChanges):
    """When and how gradients are cleared."""

    when: ClearingTime = "before forward"
    how: Literal["to None", "to zeros", "model.zero_grad", "grad = None", "grad.zero_"] = "to None"
    """The first two: ``optimizer.zero_grad``; the last two: by hand."""


@dataclass(frozen=True, repr=False)
class ScalerPlan(ShownByChanges):
    """Which GradScalers a loop has and how it uses them."""

    kind: Literal["none", "one", "one each", "new each epoch", "disabled"] = "none"
    init_scale: float = 2.0**16
    growth_interval: int = 2000
    divides: Literal["loss", "scaled loss"] = "loss"
    """Which of them accumulation divides."""
    unscales: bool = True
    """Whether clipping is preceded by ``unscale_``, as it should be."""
    updates: Literal["each iteration", "each step"] = "each iteration"

    @property
    def scales(self) -> bool:
        """Whether losses are multiplied."""
        return self.kind not in ("none", "disabled")


@dataclass(frozen=True, repr=False)
class AutocastPlan(ShownByChanges):
    """Where a loop enters ``torch.autocast``."""

    dtype: Literal["none", "bfloat16", "float16"] = "none"
    around: Around = "forward"
    without: Literal["nothing", "loss", "last layer"] = "nothing"
    """What runs in a nested region with autocast disabled."""


@dataclass(frozen=True, repr=False)
class LoopPlan(ShownByChanges):
    """One training loop, without whoever watches it."""

    shape: Shape = "plain"
    epochs: int = 1
    steps: int = 3
    """Of each epoch; iterations for shapes that make several steps in one."""
    accumulate: int = 1
    """Backward passes of a step; more than one in a GAN: real and generated data have one each."""
    divides: bool = True
    """Whether an accumulated loss is divided by their number."""
    clearing: Clearing = field(default_factory=Clearing)
    optimizer: Literal["SGD", "AdamW"] = "SGD"
    groups: Literal[1, 2] = 1
    """Parameter groups; the second has a tenth of the learning rate."""
    schedule: Literal["none", "StepLR", "StepLR each epoch", "OneCycleLR", "ReduceLROnPlateau"] = "none"
    clips: bool = False
    backward: Literal["method", "function", "list", "two losses", "inputs", "gradient"] = "method"
    """``loss.backward()``; ``torch.autograd.backward`` of the loss, of a list with it, and of a list of two;
    ``backward(inputs=...)``; and a loss of each sample, with an explicit gradient."""
    loss_shape: Literal["scalar", "one element"] = "scalar"
    scaler: ScalerPlan = field(default_factory=ScalerPlan)
    autocast: AutocastPlan = field(default_factory=AutocastPlan)
    weights: Dtype = "float32"
    guard: Literal["none", "loss", "norm", "loss before backward"] = "none"
    """What has to be finite for a step; else gradients are cleared and the loop continues."""
    bad_batches: tuple[int, ...] = ()
    """Batches of NaN, counted from 0 over the whole loop."""
    detaches: bool = True
    """Whether a GAN's generated data are detached for its discriminator."""
    turns: int = 1
    """Closure calls of LBFGS at most; critic steps for one of a WGAN's generator. If more than 1, models side
    by side all have their passes before the first of them steps."""
    extras: tuple[Extra, ...] = ()
    checkpoints: Checkpoints = "none"
    compiled: Literal["none", "eager", "aot_eager"] = "none"
    replaces: Replaced = "nothing"
    """What is made anew after the first epoch; the old one is deleted."""
    seed: int = 0

    @property
    def players(self) -> int:
        """How many optimizers it has that last."""
        if self.shape == "side by side":
            return 3
        return 2 if self.shape in ("two parts", "GAN", "WGAN") else 1


@dataclass(frozen=True, repr=False)
class Watching(ShownByChanges):
    """Who watches a loop, and what the loop itself says to it."""

    by: Literal["observe", "watch", "run --observe"] = "observe"
    player: int = 0
    """The optimizer that is given to ``observe`` and ``watch``."""
    passes_scaler: bool = True
    tells_batches: bool = False
    """``monitor.steps`` and ``monitor.epochs``."""
    logs_loss: bool = False
    """``monitor.log(loss=...)``, of ten times the loss."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """What ``watch`` starts in."""
    switches: tuple[tuple[int, str], ...] = ()
    """Before which step which precision is asked for."""
    uses: Literal["scaler", "monitor"] = "scaler"
    """``monitor.scaler`` as in any loop, or ``monitor.backward`` and ``monitor.step``."""
    forgets_autocast: bool = False


@dataclass(frozen=True, repr=False)
class Example(ShownByChanges):
    """A loop and who watches it."""

    plan: LoopPlan = field(default_factory=LoopPlan)
    watching: Watching = field(default_factory=Watching)
