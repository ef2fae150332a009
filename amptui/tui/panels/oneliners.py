"""Panels folded to one line each, for screens without room for their frames."""

from amptui.base import units
from amptui.diagnosis.rank_words import (
    rank_lost,
    ranks_awaited,
    ranks_disagree,
    samples_each,
    size_words,
    slow_in_short,
)
from amptui.diagnosis.speed import result_of_the_pair, why_no_ratio
from amptui.records.findings import PrecisionsCompared
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels import ab_comparison
from amptui.tui.panels import loss as losses
from amptui.tui.panels import memory_panel as memories
from amptui.tui.panels import precision_table as comparing
from amptui.tui.panels import scale as scales
from amptui.tui.panels import throughput as throughputs
from amptui.tui.panels.optimizer_line import front_label
from amptui.tui.panels.phase import waiting_words
from amptui.tui.panels.phrases import GAP, Phrase, Word, fitting, line_width, wrapped, write
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.renderables.rank_strips import strip_text
from amptui.tui.style import BOLD, VERDICT_SIGNS, Style

_LABEL_WIDTH = 12

_GROWTH_BAR = 10

_MEMORY_WIDTH = 40
"""A GPU's name, bar and amount; with little room the bar gives way."""

_MIN_AMOUNT = 21
"""Without a bar."""


def loss(canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
    """The loss in place of its curve."""
    waiting = "" if view.loss.count else waiting_words(view, screen)
    if waiting:
        _line(canvas, "loss", [Phrase((Word(f"waiting: {waiting}", Style.DIM),))])
        return
    label = front_label(view)
    name = [Phrase((Word(label, Style.STRONG),), 1)] if label else []
    _line(canvas, "loss", [*name, *losses.headline(view, screen)])


def throughput(canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
    """Samples a second and the time of a step, in the style of the current precision."""
    samples = units.rate(view.samples_per_second, "samples")
    phrases = [
        Phrase((Word(f"{samples:<16}", ab_comparison.steady_style(view) | BOLD),)),
        throughputs.step_time(view),
    ]
    _line(canvas, "throughput", phrases)


def scale(canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
    """The loss scale, its problems, the progress to its next doubling, and the skipped steps."""
    if view.scaler.scale is None:
        _line(canvas, "loss scale", [Phrase((Word(scales.NEVER_USED, Style.DIM),))])
        return
    kept = scales.kept_words(view)
    second = Phrase((Word(kept, Style.DIM),), 2) if kept else scales.growth(view.scaler, _GROWTH_BAR)
    phrases = [scales.value(view), *scales.trouble(view), second, *scales.counts(view.scaler)]
    _line(canvas, "loss scale", phrases)


def memory(canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
    """The training GPU, or the first one, or the host; and whether any GPU is throttled."""
    if view.device is None:
        _line(canvas, "memory", [Phrase((Word(memories.NO_SAMPLE, Style.DIM),))])
        return
    room = canvas.width - 2 - _LABEL_WIDTH
    gpus = memories.ordered_gpus(view)
    if not gpus:
        note = Phrase((Word(view.device.note, Style.DIM),), 1)
        bar = memories.host_bar(view.device.host, _room_beside([note], room))
        _line(canvas, "memory", [*bar, note])
        return
    name, gpu, trains = gpus[0]
    held = [text for _, each, _ in gpus if (text := memories.held_words(each, 0))]
    beside = [Phrase((Word(text, Style.WARNING),), 1) for text in held[:1]] or [memories.busy(gpu)]
    _line(canvas, "memory", [*memories.gpu_bar(name, gpu, trains, _room_beside(beside, room)), *beside])


def _room_beside(phrases: list[Phrase], room: int) -> int:
    """What a bar and its amount may take of ``room`` beside ``phrases``."""
    return max(_MIN_AMOUNT, min(_MEMORY_WIDTH, room - GAP - line_width(phrases)))


def comparison(canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
    """What AMP gained, a comparison's progress, or why there is no result yet."""
    runs = ab_comparison.running(view)
    room = canvas.width - 2 - _LABEL_WIDTH
    if runs is not None:
        phrases = [Phrase((Word(ab_comparison.round_words(runs), Style.STRONG),))]
        phrases += _measured(runs)
    elif view.compared is not None and result_of_the_pair(view) is not None:
        phrases = _measured(view.compared)
        phrases.append(Phrase((Word(ab_comparison.blocks_words(view.compared), Style.DIM),), 3))
    else:
        phrases = _gain(view, screen, room)
        hint = comparing.interval_hint(view, screen)
        phrases += [Phrase((Word(hint, Style.DIM),), 3)] if hint else []
    _line(canvas, "comparison", phrases)


def _measured(found: PrecisionsCompared) -> list[Phrase]:
    """The speed of each precision, and its interval where that fits."""
    phrases = []
    for speed, interval in ab_comparison.measured_words(found):
        phrases += [Phrase((speed,), 1), *([Phrase((interval,), 2)] if interval.text else [])]
    return phrases


def _gain(view: SessionView, screen: ScreenState, room: int) -> list[Phrase]:
    """The medians and the memory, or why there is no ratio; the speed is in the answer's line."""
    compared = view.comparison
    steps, memory = comparing.step_words(compared), comparing.memory_words(compared)
    phrases = [Phrase(steps)] if steps else []
    phrases += [Phrase((memory,), 1)] if memory is not None else []
    if compared.speedup is None:
        reason = why_no_ratio(compared, screen.accepts) or comparing.NOTHING_YET
        phrases.append(Phrase(tuple(Word(line, Style.DIM) for line in wrapped(reason, room, lines=1)), 3))
    return phrases


def ranks(canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
    """How many ranks, what is wrong with them, or which is slow."""
    found = view.ranks
    if found is None:
        return
    phrases = [Phrase((Word(size_words(found.world_size, None)),), 2)]
    alarms = [*map(rank_lost, found.lost), *map(ranks_disagree, found.disagreements)]
    if alarms:
        sign, style = VERDICT_SIGNS["error"]
        room = canvas.width - 2 - _LABEL_WIDTH
        phrases.append(Phrase((Word("".join(wrapped(f"{sign} {alarms[0]}", room, lines=1)), style),), 0))
    elif found.awaited is not None:
        sign, style = VERDICT_SIGNS["warning"]
        phrases.append(Phrase((Word(f"{sign} {ranks_awaited(found.awaited)}", style),), 0))
    elif found.straggler is not None:
        sign, style = VERDICT_SIGNS["warning"]
        phrases.append(Phrase((Word(f"{sign} {slow_in_short(found.straggler)}", style),), 0))
    elif view.samples_per_second is not None:
        rate = samples_each(view.samples_per_second, found.world_size, view.run)
        each = units.rate(rate, "samples")
        phrases.append(Phrase((Word(f"{each:<14}"), Word(" each", Style.DIM)), 3))
    own = [row.own_seconds or None for row in found.rows]
    if len(own) == found.world_size and any(own):
        slow = found.straggler.rank if found.straggler is not None else None
        cells = zip(found.rows, strip_text(own, ascii_only=canvas.ascii_only), strict=True)
        words = [Word(cell, Style.WARNING if row.rank == slow else Style.TEXT) for row, cell in cells]
        phrases.insert(1, Phrase(tuple(words), 1))
    _line(canvas, "ranks", phrases)


def _line(canvas: Canvas, label: str, phrases: list[Phrase]) -> None:
    """A dim label, then the phrases that fit."""
    canvas.text(1, 0, label, Style.DIM)
    write(canvas, 1 + _LABEL_WIDTH, 0, fitting(phrases, canvas.width - 2 - _LABEL_WIDTH))
