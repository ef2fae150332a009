"""Generated training loops: what one of them does, and how such plans are drawn."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from hypothesis import strategies as st

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
    when: ClearingTime = "before forward"
    how: Literal["to None", "to zeros", "model.zero_grad", "grad = None", "grad.zero_"] = "to None"
    """The first two: ``optimizer.zero_grad``; the last two: by hand."""


@dataclass(frozen=True, repr=False)
class ScalerPlan(ShownByChanges):
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
    dtype: Literal["none", "bfloat16", "float16"] = "none"
    around: Around = "forward"
    without: Literal["nothing", "loss", "last layer"] = "nothing"
    """What runs in a nested region with autocast disabled."""


@dataclass(frozen=True, repr=False)
class LoopPlan(ShownByChanges):
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
    plan: LoopPlan = field(default_factory=LoopPlan)
    watching: Watching = field(default_factory=Watching)


Draw = Callable[[st.SearchStrategy[Any]], Any]

_GANS = ("GAN", "WGAN")
_WITHOUT_SCALER = ("SAM", "SAM class", "closure", "LBFGS")
_TAKE_TURNS = ("LBFGS", "WGAN", "side by side")


def _one_of(draw: Draw, name: str, *values: Any) -> Any:
    """One of the values, each as likely.

    Hypothesis repeats what it drew of one strategy where it draws from its like. Those of different names are
    unlike: examples differ more.
    """
    return draw(st.sampled_from([(name, value) for value in values]))[1]


def _rarely(draw: Draw, name: str, usual: Any, *others: Any) -> Any:
    """The usual value in three of four examples."""
    return _one_of(draw, name, *[usual] * (3 * len(others)), *others)


@st.composite
def examples(
    draw: Draw, *, shape: Shape | None = None, by: str | None = None, compiled: str = "none"
) -> Example:
    """A loop and who watches it; what is given is not left to chance."""
    if compiled != "none":
        shape = "plain"
    elif shape is None:
        shape = _one_of(draw, "shape", *["plain"] * 10, *get_args(Shape))
    if by is None:
        ways = ["observe", "watch", "run --observe"]
        by = _one_of(draw, "by", *ways)
    plan = _plan(draw, shape, by, compiled)
    return Example(plan, _watching(draw, plan, by))


def _plan(draw: Draw, shape: Shape, by: str, compiled: str) -> LoopPlan:
    weights: Dtype = "float32"
    if compiled == "none":
        weights = _rarely(draw, "weights", "float32", "bfloat16", "float64", "float16")
    replaces: Replaced = "nothing"
    if shape not in ("two parts", *_GANS, "side by side"):
        replaces = _rarely(draw, "replaces", "nothing", "optimizer", "model")
    scaler = _scaler(draw, shape, by, weights)
    epochs = _one_of(draw, "epochs", 1, 2, 3)
    if replaces != "nothing" or scaler.kind == "new each epoch":
        epochs = max(2, epochs)
    checkpoints: Checkpoints = "none"
    if compiled == "none":
        checkpoints = _rarely(draw, "checkpoints", "none", "reentrant", "not reentrant")
    backward = _backward(draw, shape, reentrant=checkpoints == "reentrant")
    most = {"plain": 4, "GAN": 2, "WGAN": 2}.get(shape, 1)
    accumulate: int = _one_of(draw, "accumulate", *range(1, most + 1))
    autocast = _autocast(draw, by, compiled)
    if weights != "float32" and autocast.around == "whole loop":  # it casts what the optimizer computes with
        autocast = AutocastPlan(autocast.dtype, "forward", autocast.without)
    guard, bad_batches = _guard(draw, shape, accumulate)
    if replaces == "model" and guard != "none":
        guard, bad_batches = "none", ()  # a run holds what it was given until a first step is made
    return LoopPlan(
        shape=shape,
        epochs=epochs,
        steps=_one_of(draw, "steps", *range(3, 7)) if epochs == 1 else _one_of(draw, "steps", *range(1, 4)),
        accumulate=accumulate,
        divides=_rarely(draw, "divides", True, False),
        clearing=_clearing(draw, shape),
        optimizer="SGD" if weights == "float16" else _one_of(draw, "optimizer", "SGD", "AdamW"),
        groups=1 if shape == "LBFGS" else _rarely(draw, "groups", 1, 2),
        schedule=_rarely(
            draw, "schedule", "none", "StepLR", "StepLR each epoch", "OneCycleLR", "ReduceLROnPlateau"
        ),
        clips=shape not in ("closure", "LBFGS", "SAM", "SAM class") and _rarely(draw, "clips", False, True),
        backward=backward,
        loss_shape=_rarely(draw, "loss_shape", "scalar", "one element")
        if backward != "gradient"
        else "scalar",
        scaler=scaler,
        autocast=autocast,
        weights=weights,
        guard=guard,
        bad_batches=bad_batches,
        detaches=_rarely(draw, "detaches", True, False) if shape in _GANS else True,
        turns=_one_of(draw, "turns", *range(1, 5)) if shape in _TAKE_TURNS else 1,
        extras=_extras(draw, shape, autocast.around),
        checkpoints=checkpoints,
        compiled=compiled,  # type: ignore[arg-type]
        replaces=replaces,
        seed=_one_of(draw, "seed", *range(10)),
    )


def _clearing(draw: Draw, shape: Shape) -> Clearing:
    when: ClearingTime = "before forward"
    if shape not in ("closure", "LBFGS"):  # they clear in the closure
        when = _one_of(draw, "when", "before forward", "before backward", "after step")
    hows = ["to None", "to zeros", "model.zero_grad", "grad = None", "grad.zero_"]
    if shape == "two parts" and when == "after step":  # nothing is left for the second optimizer
        hows.remove("model.zero_grad")
    return Clearing(when, _one_of(draw, "how", *hows))


def _scaler(draw: Draw, shape: Shape, by: str, weights: str) -> ScalerPlan:
    if shape in _WITHOUT_SCALER:
        return ScalerPlan()
    kinds = ["none", "one"] if by == "watch" else ["none", "one", "one each", "new each epoch", "disabled"]
    if shape == "two parts" and by != "watch":  # one loss, and so one scaler
        kinds.remove("one each")
    if weights == "float16":  # torch unscales no float16 gradients
        kinds = ["none"]
    kind = _one_of(draw, "kind", *kinds)
    if kind in ("none", "disabled"):
        return ScalerPlan(kind)
    return ScalerPlan(
        kind,
        init_scale=_one_of(draw, "init_scale", 2.0**16, 2.0**8, 2.0**20, 2.0**32),
        growth_interval=_one_of(draw, "growth_interval", 2000, 1, 2),
        divides=_rarely(draw, "divided", "loss", "scaled loss"),
        unscales=_rarely(draw, "unscales", True, False),
        updates=_one_of(draw, "updates", "each iteration", "each step"),
    )


def _autocast(draw: Draw, by: str, compiled: str) -> AutocastPlan:
    around: Around = "forward"
    if compiled == "none":
        around = _one_of(draw, "around", *get_args(Around))
    if by == "watch":  # its dtype is the monitor's
        return AutocastPlan("none", around, _rarely(draw, "without loss", "nothing", "loss"))
    dtype = _one_of(draw, "dtype", "none", "bfloat16", "float16")
    if dtype == "none":
        return AutocastPlan()
    return AutocastPlan(dtype, around, _rarely(draw, "without", "nothing", "loss", "last layer"))


def _backward(draw: Draw, shape: Shape, *, reentrant: bool) -> Any:
    ways = ["function", "list"]
    if shape in ("plain", "closure", "two parts"):
        ways.append("two losses")
    if not reentrant:
        ways.append("inputs")
    if shape == "plain":
        ways.append("gradient")
    return _rarely(draw, "backward", "method", *ways)


def _guard(draw: Draw, shape: Shape, accumulate: int) -> tuple[Any, tuple[int, ...]]:
    """The guard, and the bad batches that it is for; some loops have those without a guard."""
    bad_batches = _rarely(draw, "bad_batches", (), (2,), (2, 4), (0, 3), (3, 4))
    if shape != "plain" or not _one_of(draw, "guards", False, True):
        return "none", bad_batches if shape in ("plain", "two parts") else ()
    guards = ["loss", "norm", "loss before backward"] if accumulate == 1 else ["norm"]
    return _one_of(draw, "guard", *guards), bad_batches or (2,)


def _extras(draw: Draw, shape: Shape, around: str) -> tuple[Extra, ...]:
    possible: list[Extra] = ["EMA"]
    if around != "whole loop":  # autocast would use its copies of the weights in the other precision
        possible += ["evaluation"] if shape in _GANS else ["evaluation", "teacher"]
    if shape not in ("two parts", *_GANS):
        possible.append("frozen layer")
    return tuple(extra for extra in possible if _rarely(draw, extra, False, True))


def _watching(draw: Draw, plan: LoopPlan, by: str) -> Watching:
    logs = plan.shape == "plain" and by != "run --observe" and _rarely(draw, "logs", False, True)
    if by == "run --observe":
        return Watching(by="run --observe")
    tells = _rarely(draw, "tells", False, True)
    if by == "watch":
        return _amp_watching(draw, plan, tells_batches=tells, logs_loss=logs)
    return Watching(
        player=_one_of(draw, "player", *range(plan.players)),
        passes_scaler=_one_of(draw, "passes_scaler", True, False) if plan.scaler.kind != "none" else True,
        tells_batches=tells,
        logs_loss=logs,
    )


def _amp_watching(draw: Draw, plan: LoopPlan, *, tells_batches: bool, logs_loss: bool) -> Watching:
    precisions = ["fp32"]
    if plan.weights == "float32":
        precisions += ["bf16"]
        if plan.shape not in _WITHOUT_SCALER:
            precisions += ["fp16"]
    by_monitor = (
        plan.shape == "plain"
        and plan.replaces == "nothing"  # monitor.step() is the first optimizer's
        and plan.backward == "method"
        and plan.guard in ("none", "loss")
        and not plan.clips
        and plan.scaler.divides == "loss"
        and _one_of(draw, "uses", False, True)
    )
    return Watching(
        by="watch",
        precision=_one_of(draw, "precision", *precisions),
        switches=tuple(
            (step, precision)
            for step in range(2, 7)
            if (precision := _rarely(draw, f"switch {step}", "", *precisions)) and len(precisions) > 1
        ),
        uses="monitor" if by_monitor else "scaler",
        forgets_autocast=_rarely(draw, "forgets_autocast", False, True),
        tells_batches=tells_batches,
        logs_loss=logs_loss,
    )
