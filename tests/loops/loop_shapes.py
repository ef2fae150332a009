"""The iteration of each shape of a loop: each call in it stands for a line of somebody's script."""

from collections.abc import Callable

import torch
from torch import Tensor

from tests.loops.loop_interpreter import LoopRun
from tests.loops.loop_plans import LoopPlan, Shape
from tests.loops.loop_players import SAM, Batch, Player, Unwatched

_RHO = 0.05


def run_plan(plan: LoopPlan, watcher: Unwatched) -> LoopRun:
    run = LoopRun(plan, watcher)
    watcher.open(run)
    try:
        run.train(ITERATIONS[plan.shape])
    finally:
        watcher.close()
    return run


def _plain(run: LoopRun, batch: Batch, index: int) -> None:
    """The loop of every tutorial, with accumulation and a guard."""
    player, plan = run.players[0], run.plan
    turn = index % plan.accumulate
    if turn == 0:
        run.before_step(player)
    loss = run.loss(player.module, batch)
    if plan.guard == "loss before backward" and not loss.isfinite().all():
        return
    if turn == 0:
        run.before_backward(player)
    run.backward(player, loss, run.usual, count=plan.accumulate)
    if turn < plan.accumulate - 1:
        return
    if _is_bad(run, player, loss):
        run.drop(player)
        return
    _log(run, loss)
    run.step(player)


def _is_bad(run: LoopRun, player: Player, loss: Tensor) -> bool:
    match run.plan.guard:
        case "loss":
            return not loss.isfinite().all()
        case "norm":
            return not run.clip(player).isfinite()
    return False


def _log(run: LoopRun, loss: Tensor) -> None:
    if run.watcher.logs_loss:
        logged = loss.detach().sum() * 10
        run.truth.logged = logged.item()
        run.watcher.log(logged)


def _adversarial(run: LoopRun, batch: Batch, _index: int) -> None:
    """A pass for the gradient of the input, whose parameter gradients are cleared, and one to train with."""
    (player,), (inputs, targets) = run.players, batch
    run.before_step(player)
    attacked = inputs.detach().requires_grad_()
    run.backward(player, run.loss(player.module, (attacked, targets)), lambda root: root.backward())
    assert attacked.grad is not None
    attacked = (attacked + 0.1 * attacked.grad.sign()).detach()
    run.clear(player)
    run.backward(player, run.loss(player.module, (attacked, targets)), run.usual)
    run.step(player)


def _sam(run: LoopRun, batch: Batch, _index: int) -> None:
    """Sharpness-aware minimization: gradients at the weights, and then those at worse ones nearby."""
    (player,) = run.players
    run.before_step(player)
    run.before_backward(player)
    run.backward(player, run.loss(player.module, batch), lambda root: root.backward())
    before = [parameter.detach().clone() for parameter in player.parameters]
    if isinstance(player.optimizer, SAM):
        player.optimizer.first_step()
        run.truth.cleared(player.parameters)
    else:
        with torch.no_grad():
            for parameter in player.parameters:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=_RHO)
        run.clear(player)
    run.backward(player, run.loss(player.module, batch), run.usual)
    if not isinstance(player.optimizer, SAM):
        with torch.no_grad():
            for parameter, value in zip(player.parameters, before, strict=True):
                parameter.copy_(value)
    run.step(player)


def _closure(run: LoopRun, batch: Batch, _index: int) -> None:
    """``optimizer.step(closure)``: LBFGS calls it several times."""
    (player,) = run.players

    def closure() -> Tensor:
        run.clear(player)
        loss = run.loss(player.module, batch)
        run.backward(player, loss, run.usual)
        return loss

    run.before_step(player)
    run.step(player, closure)


def _two_parts(run: LoopRun, batch: Batch, _index: int) -> None:
    """Two optimizers over two parts of one model: both step after each pass."""
    for player in run.players:
        run.before_step(player)
    loss = run.loss(run.players[0].module, batch)
    for player in run.players:
        run.before_backward(player)
    run.backward(run.players[0], loss, run.usual)
    for player in run.players:
        run.step(player)


def _side_by_side(run: LoopRun, batch: Batch, _index: int) -> None:
    """Models of their own, each with its optimizer: one after another, or all passes before all steps."""
    for player in run.players:
        run.before_step(player)
        loss = run.loss(player.module, batch)
        run.before_backward(player)
        run.backward(player, loss, run.usual)
        if run.plan.turns == 1:
            run.step(player)
    for player in run.players if run.plan.turns > 1 else ():
        run.step(player)


def _gan(run: LoopRun, batch: Batch, index: int) -> None:
    """A discriminator's step and a generator's, whose loss gives gradients to both."""
    (critic, generator), (real, noise) = run.players, batch
    ones, zeros = noise.new_ones(4, 1), noise.new_zeros(4, 1)
    run.before_step(critic)
    fake = run.predict(generator.module, noise).to(real.dtype)
    of_fake = run.loss(critic.module, (fake.detach() if run.plan.detaches else fake, zeros))
    of_real = run.loss(critic.module, (real, ones))
    run.before_backward(critic)
    if run.plan.accumulate > 1:
        run.backward(critic, of_real, lambda root: root.backward())
        run.backward(critic, of_fake, lambda root: root.backward())
    else:
        run.backward(critic, of_real + of_fake, run.usual)
    run.step(critic)
    if (index + 1) % (run.plan.turns if run.plan.shape == "WGAN" else 1):
        return
    run.before_step(generator)
    judged = run.loss(critic.module, (run.predict(generator.module, noise).to(real.dtype), ones))
    run.before_backward(generator)
    run.backward(generator, judged, lambda root: root.backward())
    run.step(generator)


ITERATIONS: dict[Shape, Callable[[LoopRun, Batch, int], None]] = {
    "plain": _plain,
    "adversarial": _adversarial,
    "SAM": _sam,
    "SAM class": _sam,
    "closure": _closure,
    "LBFGS": _closure,
    "two parts": _two_parts,
    "side by side": _side_by_side,
    "GAN": _gan,
    "WGAN": _gan,
}
