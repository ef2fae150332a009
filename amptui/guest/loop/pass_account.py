"""Which backward passes gave gradients to an optimizer's parameters, and which of these reach its step.

A pass counts if it changed the gradient of any of the parameters: that is seen by looking at ``.grad`` before
and after, at a few parameters as long as these tell, at all of them otherwise. Passes whose gradients the
loop clears before the step (an adversarial example, the first pass of SAM, a bad batch) do not count.
"""

import weakref
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from amptui.guest.loop.backward_pass import LOW_DTYPES, BackwardPass
from amptui.guest.loop.computed_precision import COMPUTED_WORDS, WEIGHTS_WORDS
from amptui.records.own_loop import LossForm

_WATCHED_PARAMETERS = 3
"""Those with the fewest elements, of as many parts of the model: their gradients are held between passes."""

_ALL_UP_TO = 6
"""So many parameters are all looked at, always."""

_MAX_DROPPED = 8

_HITS_TO_TRUST = 64
"""After so many passes in a row that changed one of the watched gradients only those are looked at."""


class StepPasses:
    """The backward passes of one step. What is the same for most steps stands in the class."""

    loss: Tensor | None = None
    """The sum of their losses; None without any."""
    count: int = 0
    absence: LossForm = ""
    """Why there is no loss, whatever ``loss`` is."""
    precision: str = ""
    """Empty without a pass."""
    is_scaled: bool = False
    """Whether the gradients are multiplied by a scale."""
    may_be_lower: bool = False
    """Whether parts that need no gradients may have been computed in a lower precision."""
    closures: int = 1
    is_product: bool = False
    """Whether something that is backpropagated is a product: the loop may multiply its loss by a scale."""
    is_edited: bool = False
    """Whether the loop changed the gradients itself, other than by clipping them as torch does."""

    def __init__(self) -> None:
        self.numbers: set[int] = set()
        """Those of the passes."""
        self.precisions: set[str] = set()

    @property
    def form(self) -> LossForm:
        """What the loss is, or why there is none."""
        if self.absence:
            return self.absence
        if not self.count:
            return "no backward"
        if self.closures > 1:
            return "first closure"
        return "sum" if self.count > 1 else ""

    def add(self, backward: BackwardPass, precision: str) -> None:
        """Another pass; its loss is added, as its gradients are."""
        self.count += 1
        self.numbers.add(backward.number)
        if backward.absence and not self.absence:
            self.absence = backward.absence
        if backward.scaler is not None:
            self.is_scaled = True
        elif type(backward.root).__name__ == "MulBackward0":
            self.is_product = True
        if backward.may_be_lower:
            self.may_be_lower = True
        self.precisions.add(precision)
        self.precision = precision if len(self.precisions) == 1 else "mixed"
        loss = backward.loss
        if loss is not None:
            if loss.dtype is not torch.float32 and loss.dtype in LOW_DTYPES:
                loss = loss.float()  # sums of 16-bit numbers would be rounded
            self.loss = loss if self.loss is None else self.loss + loss.to(self.loss.device)


class DroppedPasses(NamedTuple):
    """Passes whose gradients were cleared before any step."""

    passes: StepPasses
    is_others: bool
    """Whether another optimizer has made a step with these gradients, which are what was left over."""


class PassAccount:
    """The backward passes for one optimizer's next step. Holds nothing of the optimizer once that is gone."""

    def __init__(self, optimizer: Optimizer, *, is_new: bool = True) -> None:
        self._optimizer = weakref.ref(optimizer, self._forget)
        self._forget()
        self.is_new = is_new
        """Whether the optimizer was built while the loop was watched."""
        self.misses = 0
        """Before its first step, backward passes in a row that gave it no gradients."""
        self.dropped_passes: deque[DroppedPasses] = deque(maxlen=_MAX_DROPPED)
        """Before its first step, the newest whose gradients were cleared."""
        self.is_sharded = False
        """Whether this process holds only a part of each parameter, and gradients may come later."""
        self.is_alone = True
        """Whether no other optimizer is known whose passes these could be."""
        self._references: tuple[weakref.ref[Tensor], ...] = ()
        """To the parameters: they tell what the optimizer trained, once it is gone."""
        self.shapes: tuple[torch.Size, ...] = ()
        self._groups = -1
        self.weights_word = ""
        """The precision that the weights' own dtype stands for; empty for float32."""
        self._dtype: torch.dtype | None = None
        self._hits = 0
        self._witness_version = 0
        self._in_step = False
        self._first_closure: StepPasses | None = None
        self._current: BackwardPass | None = None
        """A pass that has begun and not been counted."""
        self.times_used_elsewhere = 0
        """How often other optimizers have made steps of all its passes."""
        self.passes = StepPasses()
        self._used_numbers: set[int] = set()
        """The numbers of those passes of which another optimizer has made a step."""

    def _forget(self, _optimizer: object = None) -> None:
        """Hold nothing of the optimizer's."""
        self._parameters: tuple[Tensor, ...] = ()
        self._witnesses: tuple[Tensor, ...] = ()
        self._looked_at: tuple[Tensor, ...] = ()
        """Those of the parameters whose gradients tell whether a pass is for them."""
        self._before: Sequence[tuple[Tensor, Tensor | None, int]] = ()
        """Parameter, gradient and its version as a pass begins."""
        self._witness: Tensor | None = None
        """A parameter that has gradients of the passes so far, and these as they were last seen."""
        self._witness_gradient: Tensor | None = None

    @property
    def optimizer(self) -> Optimizer | None:
        """Whose passes these are; None once the script has dropped it."""
        return self._optimizer()

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """What the optimizer changes."""
        optimizer = self._optimizer()
        if optimizer is not None and len(optimizer.param_groups) != self._groups:
            self.refresh()
        return self._parameters

    @property
    def ids(self) -> frozenset[int]:
        """Those of the parameters that still exist: an id is used again once its object is gone."""
        return frozenset(id(p) for reference in self._references if (p := reference()) is not None)

    def refresh(self) -> None:
        """Read the optimizer's parameters again."""
        optimizer = self._optimizer()
        if optimizer is None:
            return
        groups = optimizer.param_groups
        self._groups = len(groups)
        self._parameters = tuple(p for group in groups for p in group["params"] if isinstance(p, Tensor))
        self._references = tuple(map(weakref.ref, self._parameters))
        self.shapes = tuple(p.shape for p in self._parameters)
        trainable = [p for p in self._parameters if p.requires_grad]
        witnesses = trainable if len(trainable) <= _ALL_UP_TO else _smallest(trainable)
        self._witnesses = tuple(sorted(witnesses, key=Tensor.numel))
        self._choose_looked_at()
        self.weights_word = _word_of_weights(trainable)
        self._dtype = self._witnesses[0].dtype if self._witnesses else None

    def _choose_looked_at(self) -> None:
        few = len(self._parameters) > _ALL_UP_TO and self._hits >= _HITS_TO_TRUST
        self._looked_at = self._witnesses if few else self._parameters

    @property
    def used_by_others(self) -> bool:
        """Whether others made steps of all passes: what they left here is not meant for a step."""
        return self.passes.count > 0 and self.passes.numbers <= self._used_numbers

    def use_elsewhere(self, numbers: set[int]) -> None:
        """Another optimizer made a step of the passes of these numbers."""
        unused = self.passes.numbers - self._used_numbers
        if unused and unused <= numbers:
            self.times_used_elsewhere += 1
        self._used_numbers |= unused & numbers

    @property
    def is_in_later_closure(self) -> bool:
        """Whether the step calls its closure again: loss and samples are those of the first call."""
        return self._first_closure is not None

    # -------------------------------------------------------------------------- edits of gradients

    def before_known_edit(self) -> None:
        """Gradients are about to be unscaled or clipped."""
        if (witness := self._witness) is not None:
            self._check_edited(witness.grad)

    def after_known_edit(self) -> None:
        """They have been: what differs now is no edit of the loop's own."""
        if (witness := self._witness) is not None:
            self._look_at_witness(witness)

    def _check_edited(self, gradient: Tensor | None) -> None:
        """The gradients are about to be used: the loop may have changed them since the last pass."""
        passes, is_same = self.passes, gradient is self._witness_gradient
        if gradient is None or self.is_sharded or (is_same and gradient._version == self._witness_version):
            return
        passes.is_edited = True
        if not is_same:  # of other tasks' gradients, too
            passes.absence = passes.absence or "edited"
        elif passes.is_product:
            passes.absence = passes.absence or "scaled"

    # ------------------------------------------------------------------------------------- a pass

    def before(self, backward: BackwardPass) -> DroppedPasses | None:
        """A pass begins. Returns those before it if their gradients were cleared meanwhile."""
        dropped_passes = None if self._witness is None else self._find_cleared()
        self._current = backward
        optimizer = self._optimizer()
        if optimizer is not None and len(optimizer.param_groups) != self._groups:
            self.refresh()
        self._before = [
            (p, gradient := p.grad, -1 if gradient is None else gradient._version) for p in self._looked_at
        ]
        return dropped_passes

    def after(self) -> bool:
        """The pass has ended: count it if it gave gradients to the parameters. Returns whether it did."""
        backward, self._current = self._current, None
        if backward is None:
            return False  # a step within the pass has counted it
        witness, self._before = self._changed(), ()
        if witness is None:
            # All parameters were looked at, or it may have changed others.
            looked_at_all = len(self._parameters) <= _ALL_UP_TO or self._hits < _HITS_TO_TRUST
            is_exact, self._hits = looked_at_all and not self.is_sharded, 0
            self._choose_looked_at()
            if not is_exact and self.is_sharded and self.is_alone:
                # Gradients are reduced at the end of several passes.
                self.passes.add(backward, self._precision_of(backward))
            elif not is_exact:
                self.passes.absence = self.passes.absence or "unattributed"
            return not is_exact
        self._hits += 1
        if self._hits == _HITS_TO_TRUST:
            self._choose_looked_at()
        self._count(backward, witness)
        return True

    def _changed(self) -> Tensor | None:
        """A parameter whose gradient is another than before the pass."""
        for parameter, before, version in self._before:
            now = parameter.grad
            if now is not before or (now is not None and now._version != version):
                return parameter
        return None

    def _count(self, backward: BackwardPass, witness: Tensor) -> None:
        self.passes.add(backward, self._precision_of(backward))
        self._look_at_witness(witness)

    def _look_at_witness(self, witness: Tensor) -> None:
        # The gradient is held so that another tensor is not taken for it: one of the smallest.
        gradient = None
        for parameter in self._witnesses:
            if (gradient := parameter.grad) is not None:
                witness = parameter
                break
        self._witness = witness
        self._witness_gradient = gradient = witness.grad if gradient is None else gradient
        self._witness_version = 0 if gradient is None else gradient._version

    def _precision_of(self, backward: BackwardPass) -> str:
        if self._witnesses and self._witnesses[0].dtype is not self._dtype:
            self.refresh()  # the model was cast
        if self.weights_word:
            return self.weights_word
        return "unknown" if backward.dtype is None else COMPUTED_WORDS[backward.dtype]

    # ---------------------------------------------------------------------------------- the step

    def before_step(self, *, has_closure: bool) -> DroppedPasses | None:
        """The optimizer begins its step. Returns the passes before it if their gradients were cleared.

        ``has_closure``: whether it may run more passes within the step.
        """
        # A step before may have raised: what its closure computed is no part of this one.
        self._in_step, self._first_closure = False, None
        if self._current is not None and (witness := self._changed()) is not None:
            backward, self._current = self._current, None  # a step in the middle of a backward pass
            self._count(backward, witness)
        dropped_passes = None
        if (witness := self._witness) is not None:
            gradient = witness.grad
            if gradient is not self._witness_gradient or (
                gradient is None or gradient._version != self._witness_version
            ):
                self._check_edited(gradient)
                dropped_passes = self._find_cleared(at_step=True)
        self._in_step = has_closure
        return dropped_passes

    def after_step(self) -> StepPasses:
        """The step is made: return its passes, and begin anew."""
        self._in_step = False
        passes, first = self.passes, self._first_closure
        if first is not None:
            first.closures, passes = passes.closures, first
            self._first_closure = None
        self._reset()
        return passes

    def abandoned(self) -> list[DroppedPasses]:
        """The passes of which no step will be made, if there are any: the optimizer is used no more."""
        if not self.passes.count:
            return []
        return [DroppedPasses(self.passes, self.used_by_others)]

    def _reset(self) -> None:
        self.passes = StepPasses()
        self._witness = self._witness_gradient = None
        if self._used_numbers:
            self._used_numbers = set()

    def _find_cleared(self, *, at_step: bool = False) -> DroppedPasses | None:
        """Forget the passes so far if their gradients have been cleared; return them.

        ``at_step``: a step is about to use the gradients, so they have not been.
        """
        witness = self._witness
        if witness is None:
            return None
        gradient = witness.grad
        version = -1 if gradient is None else gradient._version
        if gradient is self._witness_gradient and version == self._witness_version:
            return None  # the usual case
        if not self._is_cleared(witness, gradient, at_step=at_step):
            return None
        passes = self.passes
        dropped_passes = DroppedPasses(passes, self.used_by_others)
        self._reset()
        if not self._in_step:
            return dropped_passes
        # A closure is called again: the step's loss is what the first one computed.
        if self._first_closure is None:
            self._first_closure = passes
        self.passes.closures = passes.closures + 1
        return None

    def _is_cleared(self, witness: Tensor, gradient: Tensor | None, *, at_step: bool) -> bool:
        """Whether all gradients are, of whose that of ``witness`` is another one than it was."""
        if gradient is None:
            remaining = next((p for p in self.parameters if p.grad is not None), None)
            if remaining is not None:
                self._look_at_witness(remaining)
            return remaining is None
        if gradient.device.type != "cpu":
            if not (at_step or self._in_step):  # to know more the host would have to wait
                self.passes.absence = self.passes.absence or "edited"
            return False
        self._look_at_witness(witness)
        return _is_zero(gradient) and all(_is_zero(p.grad) for p in self.parameters)


def _smallest(parameters: Sequence[Tensor]) -> list[Tensor]:
    """The smallest parameter of each part of the model."""
    length = -(-len(parameters) // _WATCHED_PARAMETERS)
    parts = [parameters[start : start + length] for start in range(0, len(parameters), length)]
    return [min(part, key=Tensor.numel) for part in parts]


def _word_of_weights(parameters: Sequence[Tensor]) -> str:
    """The precision that weights of another dtype than float32 stand for, by most of their elements."""
    sizes: dict[torch.dtype, int] = {}
    for parameter in parameters:
        sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
    dtype = max(sizes, key=sizes.__getitem__, default=torch.float32)
    return WEIGHTS_WORDS.get(dtype, "")


@torch.no_grad()
def _is_zero(gradient: Tensor | None) -> bool:
    """Whether a gradient on the host has no value other than zero."""
    if gradient is None:
        return True
    if gradient.device.type != "cpu":
        return False
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return not bool(values.any())
