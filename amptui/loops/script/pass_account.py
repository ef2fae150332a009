"""Which backward passes gave gradients to an optimizer's parameters, and which of these reach its step.

A pass counts if it changed the gradient of any of the parameters: that is seen by looking at ``.grad`` before
and after, at a few parameters as long as these tell, at all of them otherwise. Passes whose gradients the
loop clears before the step (an adversarial example, the first pass of SAM, a bad batch) do not count; those
that would usually have made a step are told.
"""

import weakref
from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from amptui.loops.script.backward_pass import WEIGHTS_WORDS, BackwardPass, all_of
from amptui.monitor.step_rows import Step

if TYPE_CHECKING:
    from amptui.records.own_loop import LossForm


_WATCHED_PARAMETERS = 3
"""Those with the fewest elements, of as many parts of the model: their gradients are held between passes."""

_ALL_UP_TO = 6
"""So many parameters are all looked at, always."""

_HITS_TO_TRUST = 64
"""After so many passes in a row that changed one of the watched gradients only those are looked at."""

_MAX_DROPPED = 8

_gradient_of = attrgetter("grad")


class PassAccount:
    """The backward passes for one optimizer's next step. Holds nothing of the optimizer once that is gone.

    Who reports the optimizer's steps is one, too, and continues the account of the time before the first.
    """

    is_sharded = False
    """Whether this process holds only a part of each parameter, and gradients may come later."""
    pending: "LoopStep | None" = None
    """The newest step, while it waits for what the loop may log with it."""
    call = 0
    """The id of the frame of the call that makes a step: within it may be others."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = weakref.ref(optimizer, self._forget)
        self._forget()
        self.passed_over = 0
        """Before its first step, steps of others that used all its passes."""
        self.misses = 0
        """Backward passes in a row that gave it no gradients."""
        self.dropped: deque[BackwardPass] = deque(maxlen=_MAX_DROPPED)
        """Before its first step, the newest whose gradients were cleared."""
        self.is_alone = True
        """Whether no other optimizer is known whose passes these could be."""
        self._references: tuple[weakref.ref[Tensor], ...] = ()
        """To the parameters: they tell what the optimizer trained, once it is gone."""
        self._groups = -1
        self.weights_word = ""
        """The precision that the dtype of most weights' elements stands for; empty for float32."""
        self._dtype: torch.dtype | None = None
        self._hits = 0
        self._in_step = False
        self.first_closure: BackwardPass | None = None
        """What the first of several closures of a step computed: the step's loss and samples are those."""
        self._current: BackwardPass | None = None
        """A pass that has begun and not been counted."""
        self._reset()

    def _forget(self, _optimizer: object = None) -> None:
        """Hold nothing of the optimizer's."""
        self._usual_precision = ""
        """That of plain passes whose step is as the one before; empty once anything may be different."""
        self._parameters: tuple[Tensor, ...] = ()
        self._witnesses: tuple[Tensor, ...] = ()
        self._looked_at: tuple[Tensor, ...] = ()
        """Those of the parameters whose gradients tell whether a pass is for them."""
        self._seen: tuple[Tensor, ...] = ()
        """The same as a pass begins, with their gradients."""
        self._gradients: Sequence[Tensor | None] = ()
        self._versions: Sequence[object] = ()
        self.witness: Tensor | None = None
        """A parameter that has gradients of the passes so far, and these as they were last seen."""
        self._witness_gradient: Tensor | None = None
        self._witness_version = 0

    def _reset(self) -> None:
        self.passes: list[BackwardPass] = []
        self._absence: LossForm = ""
        """Why there is no loss, whatever those of the passes are."""
        self._is_edited = False
        self.witness = self._witness_gradient = None

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
        trainable = [p for p in self._parameters if p.requires_grad]
        witnesses, sizes = trainable, dict[torch.dtype, int]()
        if len(trainable) > _ALL_UP_TO:  # the smallest of each part of the model
            length = -(-len(trainable) // _WATCHED_PARAMETERS)
            parts = [trainable[start : start + length] for start in range(0, len(trainable), length)]
            witnesses = [min(part, key=Tensor.numel) for part in parts]
        self._witnesses = tuple(sorted(witnesses, key=Tensor.numel))
        self._choose_looked_at()
        for parameter in trainable:
            sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
        self.weights_word = WEIGHTS_WORDS.get(max(sizes, key=sizes.__getitem__, default=torch.float32), "")

    def _choose_looked_at(self) -> None:
        few = len(self._parameters) > _ALL_UP_TO and self._hits >= _HITS_TO_TRUST
        self._looked_at = self._witnesses if few else tuple(sorted(self._parameters, key=Tensor.numel))
        self._dtype, self._usual_precision = self._looked_at[0].dtype if self._looked_at else None, ""

    @property
    def used_by_others(self) -> bool:
        """Whether others made steps of all passes: what they left here is not meant for a step."""
        return bool(self.passes) and all(backward.is_used for backward in self.passes)

    def miss(self) -> None:
        """Nobody has looked at the passes so far."""
        self._absence = "unattributed"

    def continue_from(self, account: "PassAccount") -> None:
        """Go on with all that another account has seen, for the optimizer of that one."""
        optimizer = account.optimizer
        assert optimizer is not None, "it is about to make a step"
        vars(self).update(vars(account))
        self._optimizer = weakref.ref(optimizer, self._forget)
        self.refresh()

    # --------------------------------------------------------- for whoever reports the steps

    def work_begins(self) -> None:
        """Something of the next step is done: what the loop logs from here on is that one's."""

    def forward_begins(self) -> None:
        """A forward pass begins, unless it is an evaluation's."""

    def after_pass(self, backward: BackwardPass) -> None:
        """Gradients are complete, perhaps scaled, and not clipped."""

    def take_dropped(self, passes: BackwardPass) -> None:
        """Gradients were cleared before any step."""
        self.dropped.append(passes)

    def before_step(self, optimizer: Optimizer, *, has_closure: bool) -> None:
        """The loop begins a step; ``has_closure``: it may run more passes within."""

    def after_step(self) -> None:
        """A step that the loop made itself is complete."""

    # ------------------------------------------------------------------------------------- a pass

    def before(self, backward: BackwardPass) -> None:
        """A pass begins: those before it do not count if their gradients were cleared meanwhile."""
        if self.pending is not None:
            self.work_begins()
        if self.witness is not None and (dropped := self._find_cleared()) is not None:
            self.take_dropped(dropped)
        optimizer = self._optimizer()
        if optimizer is not None and len(optimizer.param_groups) != self._groups:
            self.refresh()
        self._current, self._seen = backward, (seen := self._looked_at)
        gradients: list[Tensor | None] = [*map(_gradient_of, seen)]
        self._gradients = self._versions = gradients
        for gradient in gradients:
            if gradient is not None:  # they are added to
                self._versions = [None if gradient is None else gradient._version for gradient in gradients]
                break

    def after(self) -> None:
        """The pass has ended: count it if it gave gradients to the parameters."""
        backward, self._current = self._current, None
        if backward is None:
            return  # a step within the pass has counted it
        gradients, self._gradients = self._gradients, ()
        for witness, before, version in zip(self._seen, gradients, self._versions, strict=True):
            now = witness.grad
            if now is before and (now is None or now._version == version):
                continue
            self.passes.append(backward)
            hits = self._hits = self._hits + 1
            if hits == _HITS_TO_TRUST or self._seen[0].dtype is not self._dtype:  # the model was cast
                self.refresh()  # fewer are looked at from now on
            # The gradient is held so that another tensor is not taken for it: one of the smallest.
            self.witness, self._witness_gradient = witness, now
            self._witness_version = 0 if now is None else now._version
            break
        else:
            # All parameters were looked at, or it may have changed others.
            looked_at_all = len(self._parameters) <= _ALL_UP_TO or self._hits < _HITS_TO_TRUST
            self._hits = 0
            self._choose_looked_at()
            if looked_at_all and not self.is_sharded:
                self.misses += 1
                return
            if self.is_sharded and self.is_alone:
                self.passes.append(backward)  # gradients are reduced at the end of several passes
            else:
                self._set_absence("unattributed")
        self.misses = 0
        self.after_pass(backward)

    def look_at(self, witness: Tensor) -> None:
        """Know the gradient there, as it is now, from one of the loop's own making."""
        self.witness, self._witness_gradient = witness, (gradient := witness.grad)
        self._witness_version = 0 if gradient is None else gradient._version

    # -------------------------------------------------------------------------- edits of gradients

    def before_known_edit(self) -> None:
        """Gradients are about to be unscaled, clipped or used: the loop may have changed them itself."""
        witness = self.witness
        if witness is None or (gradient := witness.grad) is None or self.is_sharded:
            return
        is_same = gradient is self._witness_gradient
        if is_same and gradient._version == self._witness_version:
            return
        self._is_edited, self._usual_precision = True, ""
        if not is_same:  # of other tasks' gradients, too
            self._set_absence("edited")
        elif any(backward.is_product for backward in self.passes):
            self._set_absence("scaled")

    def _set_absence(self, form: "LossForm") -> None:
        self._absence, self._usual_precision = self._absence or form, ""

    def after_known_edit(self) -> None:
        """They have been: what differs now is no edit of the loop's own."""
        if self.witness is not None:
            self.look_at(self.witness)

    # ---------------------------------------------------------------------------------- the step

    def check_gradients(self) -> None:
        """A step is about to use gradients that are not as the passes left them."""
        self.before_known_edit()
        if (dropped := self._find_cleared(at_step=True)) is not None:
            self.take_dropped(dropped)

    def end_passes(self, *, is_scaled: bool = False) -> BackwardPass:
        """The step is made, by a scaler if ``is_scaled``: return its passes as one, and begin anew."""
        parts, self.passes = self.passes, []
        self.witness = self._witness_gradient = None
        passes = self._sum_up(parts)
        self._absence, self._is_edited, self._in_step = "", False, False
        for backward in parts:
            backward.is_used = True
        if is_scaled and passes.loss is not None and passes.scaler is None:
            # The scaler divides the gradients: something has multiplied them.
            passes = passes.changed(loss=None, form="scaled", is_edited=True)
        if (first := self.first_closure) is not None:
            passes = first if first.loss is None else first.changed(form="first closure")
            self.first_closure = None
        return passes

    def abandoned(self) -> BackwardPass:
        """The passes so far as one, of which no step is made; used if others have made steps of all."""
        return self._sum_up(self.passes).changed(is_used=self.used_by_others)

    def _sum_up(self, parts: Sequence[BackwardPass]) -> BackwardPass:
        passes = all_of(parts)
        if self._absence:
            passes = passes.changed(loss=None, form=self._absence)
        return passes.changed(is_edited=True) if self._is_edited else passes

    def _find_cleared(self, *, at_step: bool = False) -> BackwardPass | None:
        """Forget the passes so far if their gradients have been cleared; return them.

        ``at_step``: a step is about to use the gradients, so they have not been.
        """
        witness = self.witness
        assert witness is not None, "asked for with one"
        gradient = witness.grad
        is_same = gradient is self._witness_gradient
        if gradient is not None and is_same and gradient._version == self._witness_version:
            return None  # the usual case of several passes
        if not self._is_cleared(witness, gradient, at_step=at_step):
            return None
        dropped = self.abandoned()
        self._reset()
        if not self._in_step:
            return dropped
        # A closure is called again: the step's loss is what the first one computed.
        self.first_closure = self.first_closure or dropped
        return None

    def _is_cleared(self, witness: Tensor, gradient: Tensor | None, *, at_step: bool) -> bool:
        """Whether all gradients are, of whose that of ``witness`` is another one than it was."""
        if gradient is None:
            remaining = next((p for p in self.parameters if p.grad is not None), None)
            if remaining is not None:
                self.look_at(remaining)
            return remaining is None
        if gradient.device.type != "cpu":
            if not (at_step or self._in_step):  # to know more the host would have to wait
                self._set_absence("edited")
            return False
        self.look_at(witness)
        return _is_zero(gradient) and all(_is_zero(p.grad) for p in self.parameters)


@torch.no_grad()
def _is_zero(gradient: Tensor | None) -> bool:
    """Whether a gradient on the host has no value other than zero."""
    if gradient is None:
        return True
    if gradient.device.type != "cpu":
        return False
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return not bool(values.any())


class LoopStep(Step):
    """Filled by the hooks. Most of it is the same in most steps: that stands in the class."""

    passes: BackwardPass = all_of(())
    """Its backward passes, once it is made."""
    logs_loss = False
    """Whether ``loss`` is what the loop logged."""
    batches = 0
    """Loaded for it; until its passes are known, ``samples`` are theirs."""
    shapes: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """Of the tensors in each batch, where they were asked for."""
    scaler: GradScaler | None = None
    """The one that has divided the gradients."""
    found_inf: Tensor | None = None
    """Whether it found an overflow."""
    awaits_update = False
    """Whether the weights are updated, and the scaler is not yet."""
    scale_before: Tensor | None = None

    def again(self) -> "LoopStep":
        """A new attempt at the same step, with the batches that were loaded for it."""
        other = LoopStep()
        other.load_start, other.data_seconds = self.load_start, self.data_seconds
        other.samples, other.batches, other.shapes = self.samples, self.batches, self.shapes
        other.is_timed = self.is_timed
        return other
