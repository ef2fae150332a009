"""Several optimizers on the screen: one in all panels, the others in a line, a key that changes it."""

import math
import time
from dataclasses import replace
from pathlib import Path

import pytest

from amptui.records.run import Record
from amptui.telemetry.view import OptimizerView, SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.frame import Frame
from amptui.tui.panels import loss, optimizer_line
from amptui.tui.replay.player import Player
from amptui.tui.style import Style
from tests.gan_journal import DISCRIMINATOR, gan_records, write_gan_journal
from tests.telemetry.record_samples import steps
from tests.telemetry.whole_runs import session_of
from tests.tui.panels.drawing import SCREEN, draw_alone, style_of
from tests.tui.watching import awaited, watching

GAN = tuple(gan_records(60))[:-1]
"""Still training."""


def now(records: tuple[Record, ...]) -> list[Record]:
    late = time.time() - records[-1].time
    return [replace(record, time=record.time + late) for record in records]


@awaited
async def test_o_shows_the_next_optimizer_in_all_panels() -> None:
    async with watching(*now(GAN), size=(160, 50)) as screen:
        assert "loss of generator" in screen.text
        assert screen.lines[2].split()[:3] == ["o", "A", DISCRIMINATOR]
        assert "o optimizer" in screen.footer
        await screen.press("o")
        assert "loss of discriminator" in screen.text
        assert screen.lines[2].split()[:3] == ["o", "B", "generator"]
        assert "AMP fp16" in screen.header
        assert f"step {118:>7}" in screen.header
        await screen.press("o")
        assert "loss of generator" in screen.text


@awaited
async def test_what_the_person_chose_stays_in_front() -> None:
    async with watching(*now(GAN)) as screen:
        await screen.press("o", "o")
        screen.session.fold(steps(200, 900, optimizer=DISCRIMINATOR))
        await screen.until(lambda: screen.session.view().front == DISCRIMINATOR)
        await screen.until(lambda: "900" in screen.lines[2])
        assert "loss of generator" in screen.text


@awaited
async def test_a_run_with_one_optimizer_has_no_line_and_no_hint() -> None:
    async with watching(*now((GAN[0], *steps(1, 30)))) as screen:
        assert "o optimizer" not in screen.footer
        assert not screen.lines[2].startswith(" o ")
        await screen.press("o")
        assert "one optimizer" in screen.notice


@awaited
@pytest.mark.parametrize("key", ["x", "n", "c"])
async def test_what_is_measured_in_steps_of_the_first_brings_it_to_the_front(key: str) -> None:
    async with watching(*now(GAN)) as screen:
        await screen.press("o")
        assert screen.app._view.front == DISCRIMINATOR
        await screen.press(key)
        assert screen.app._view.front == ""


@awaited
async def test_the_help_lists_the_key() -> None:
    async with watching(*now(GAN)) as screen:
        await screen.press("question_mark")
        assert "several optimizers" in screen.text


# --------------------------------------------------------------------------------------- the line


def gan_view(*, front: str = "") -> SessionView:
    return session_of(GAN).view(front)


def line(view: SessionView, width: int) -> str:
    return draw_alone(optimizer_line.draw, view, width).lines()[0]


def test_the_line_is_cut_to_what_matters() -> None:
    view = gan_view()
    wide, narrow, least = (line(view, width).split() for width in (120, 60, 34))
    assert wide[:5] == ["o", "A", DISCRIMINATOR, "loss", wide[4]]
    assert {"avg", "lr", "norm", "step"} <= set(wide)
    assert "norm" in narrow
    assert "step" not in narrow
    assert least == wide[:5]


@pytest.mark.parametrize(("width", "count"), [(40, "+5"), (80, "+3"), (160, "")])
def test_how_many_have_no_room_is_told(width: int, count: str) -> None:
    others = [OptimizerView(name=str(n), label=f"critic {n}", loss=0.5) for n in range(6)]
    view = replace(gan_view(), optimizers=(OptimizerView(name="", label="a", is_front=True), *others))
    shown = line(view, width)
    assert ("+" in shown) == bool(count)
    assert shown.count("critic") == 6 - int(count or 0)
    assert not count or shown.split()[-1] == count


def test_skips_of_another_optimizer_are_seen() -> None:
    view = gan_view()
    skipping = tuple(replace(optimizer, skipped=3) for optimizer in view.optimizers)
    canvas = draw_alone(optimizer_line.draw, replace(view, optimizers=skipping), 80)
    assert "3 skipped" in canvas.lines()[0]
    assert style_of(canvas, "3 skipped") == Style.WARNING


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_names_of_any_length_are_cut_and_steer_nothing(width: int) -> None:
    label = "\x1b[2Jcritic \u202e" + "x" * 100_000
    others = (
        OptimizerView(name="", label="", is_front=True),
        OptimizerView(name="a", label=label, loss=math.nan),
    )
    text = line(replace(gan_view(), optimizers=others), width)
    assert len(text) == width
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_a_loss_that_there_is_not_is_told() -> None:
    others = (
        OptimizerView(name="", label="a", is_front=True),
        OptimizerView(name="b", label="b", loss_form="no backward"),
    )
    view = replace(gan_view(), optimizers=others, optimizers_left_out=True)
    assert " ".join(line(view, 120).split()) == "o ? b no loss step 0 ⚠ more than 8"


# -------------------------------------------------------------------------------------- the frame


@pytest.mark.parametrize("size", [(40, 12), (80, 24), (100, 30), (120, 40), (160, 50), (70, 40)])
@pytest.mark.parametrize("front", ["", DISCRIMINATOR])
def test_every_size_shows_both(size: tuple[int, int], front: str) -> None:
    canvas = Canvas(*size)
    Frame().draw(canvas, gan_view(front=front), SCREEN)
    text = "\n".join(canvas.lines())
    assert "generator" in text
    assert DISCRIMINATOR in text


def test_the_panel_tells_what_the_loss_is() -> None:
    canvas = Canvas(80, 24)
    Frame().draw(canvas, gan_view(front=DISCRIMINATOR), SCREEN)
    assert "sum of 2 passes" in "\n".join(canvas.lines())


def test_a_run_without_losses_says_why_in_place_of_the_curve() -> None:
    view = session_of([GAN[0], *steps(1, 30, loss=None, loss_form="several values")]).view()
    canvas = Canvas(80, 24)
    Frame().draw(canvas, view, SCREEN)
    assert sum("no loss: backward() of several values" in text for text in canvas.lines()) == 2


def test_a_stale_loss_is_not_shown_as_the_newest() -> None:
    view = session_of([GAN[0], *steps(1, 30, loss=0.5), *steps(31, 32, loss=None, loss_form="scaled")]).view()
    words = [word for phrase in loss.headline(view, SCREEN) for word in phrase.words]
    assert "0.5" not in str(words[0])


# --------------------------------------------------------------------------------------- a replay


def test_a_replay_shows_whichever_optimizer_is_chosen(tmp_path: Path) -> None:
    player = Player(write_gan_journal(tmp_path / "gan", 60) / "journal.jsonl", speed=1.0)
    player.seek(1000.0)
    moment = time.monotonic()
    while not player.advance(moment):
        pass
    assert player.look().front == ""
    assert player.look(DISCRIMINATOR).step == 118
    player.seek(0.0)
    player.advance(moment)
    assert player.look(DISCRIMINATOR).front == "", "it has not come yet"
