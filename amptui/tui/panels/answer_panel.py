"""The answer on AMP: the line below the header, and the findings that it follows from."""

from collections.abc import Mapping, Sequence

from amptui.base import units
from amptui.diagnosis.activity import switch_target
from amptui.diagnosis.amp_answer import (
    AmpAnswer,
    amp_answer,
    evidence_rows,
    interval_words,
    next_measurement,
    no_amp_words,
    safe_forms,
    worth_forms,
)
from amptui.diagnosis.speed import running
from amptui.diagnosis.words import SIGNS, SUBJECTS
from amptui.telemetry.finding import Grade, Measurement
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas, text_width
from amptui.tui.keys import KEYS, REQUESTS
from amptui.tui.panels.phrases import (
    GAP,
    Block,
    Line,
    Phrase,
    Word,
    fitting,
    flowed,
    phrase,
    precision_word,
    whole_words,
    wrapped_phrases,
    write,
)
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import BOLD, GRADE_STYLES, Style

_ACTIONS: Mapping[Measurement, str] = {
    "comparison": "compare",
    "precision": "toggle_precision",
    "x-ray": "take_xray",
    "trace": "trace_modules",
    "histogram": "focus_numerics",
}

_WORTH_STYLES: Mapping[str, int] = {"faster": Style.GOOD | BOLD, "slower": Style.WARNING | BOLD}

LABEL_WIDTH = 12
"""Room for a key and ``bottleneck``."""

_MAX_LINES = 4
"""Lines of one sentence."""

_RANKS: Mapping[Grade, int] = {"error": 1, "warning": 2, "good": 3, "neutral": 4, "unknown": 5}


def draw_line(canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
    """What runs, whether it is worth it and safe, and which key measures what is missing."""
    answer = amp_answer(view)
    if answer.precision is None:
        if view.run is not None:  # before, the precision is not known
            words = whole_words(no_amp_words(view.precision), canvas.width - 2)
            canvas.text(1, 0, words, Style.DIM, width=canvas.width - 2)
        return
    keys = {"p": key_of("precision", screen), "c": key_of("comparison", screen)}
    if keys["p"] and switch_target(view) != answer.precision:
        keys["p"] = "m"  # `p` leads elsewhere: from TF32 to FP32, say
    if running(view) is not None:
        keys.pop("c")  # it would end the comparison
    room = canvas.width - 2
    write(canvas, 1, 0, fitting(_phrases(answer, screen, keys, room), room))


def _phrases(answer: AmpAnswer, screen: ScreenState, keys: Mapping[str, str], room: int) -> list[Phrase]:
    step, grade = answer.culprit_step, answer.safety_grade
    name = precision_word(answer.headline_precision)
    if step is not None:
        name = Word(f"step {units.count(step)}", Style.STRONG)
    safe = safe_forms(answer)
    worth = worth_forms(answer, keys) if answer.trouble is None else ()
    # The longest that fit; where not even the shortest do, doubt counts more than the speed.
    pairs = [pair for long in worth or ("",) for pair in ((long, words) for words in safe or ("",))]
    pairs.append((worth[-1], "") if worth and answer.doubt is None else ("", safe[-1]))
    left = room - text_width(name.text) - GAP
    worth_words, safe_words = next((pair for pair in pairs if text_width("  ".join(pair)) <= left), pairs[-1])
    style = _WORTH_STYLES.get(answer.worth, int(Style.TEXT))
    if answer.of("speed").numbers.get("ratio") and not interval_words(answer.of("speed")):
        style = int(Style.DIM)
    safe_style = GRADE_STYLES[grade] if grade in ("good", "warning", "error") else int(Style.DIM)
    phrases = [
        Phrase((name,), 1),
        phrase(whole_words(worth_words, left), style, 2),
        phrase(whole_words(safe_words, room), safe_style),
    ]
    measured_by, what = next_measurement(answer)
    key = key_of(measured_by, screen)
    if key and what:
        phrases.append(Phrase((Word(key, Style.KEY), Word(f" {what}", Style.DIM)), 5))
    return [phrase for phrase in phrases if phrase.width]


def key_of(measured_by: Measurement, screen: ScreenState) -> str:
    """The key that measures it; empty if there is none, or if the run does not take it from this screen."""
    action = _ACTIONS.get(measured_by)
    if action is None or (action in REQUESTS and REQUESTS[action] not in screen.accepts):
        return ""
    return next(key.label for key in KEYS if key.action == action)


_OF_FLOAT16 = ("overflow", "forward", "float16", "agreement")
"""The subjects of the float16 panel."""


def finding_blocks(
    answer: AmpAnswer, screen: ScreenState, width: int, *, of_float16: bool = False
) -> list[Block]:
    """Of each measured finding its key, label, sign and words, and what it is from; the worst matter most.

    Those ``of_float16`` need not name it.
    """
    blocks = []
    for finding, words, evidence in evidence_rows(answer):
        if of_float16 and finding.subject not in _OF_FLOAT16:
            continue
        style, interval = GRADE_STYLES[finding.grade], interval_words(finding)
        dim = finding.grade == "unknown" or (finding.subject == "speed" and not interval)
        value_style = style if finding.is_trouble else Style.DIM if dim else int(Style.TEXT)
        sign, room = Word(SIGNS[finding.grade], style), width - LABEL_WIDTH - GAP
        # A cell is kept free for the sign that it was cut.
        prose = wrapped_phrases(f" {words}", value_style, room - 1, lines=_MAX_LINES, head=(sign,))
        source = phrase(
            whole_words(evidence, room), Style.WARNING if finding.freshness == "old" else Style.DIM
        )
        lines = [*prose[:-1], *flowed([*prose[-1], source], room)]
        label = SUBJECTS.get(finding.subject, finding.subject)
        key = key_of(finding.measured_by, screen)
        blocks.append(labelled_block(label, lines, _RANKS[finding.grade], key=key))
    return blocks


def labelled_block(label: str, lines: Sequence[Line], rank: int, *, key: str = "") -> Block:
    """``lines`` behind a key and a dim label, those after the first indented as much."""
    first = Phrase((Word(f"{key:1} ", Style.KEY), Word(f"{label:<{LABEL_WIDTH - 2}}", Style.DIM)), -1)
    blank = phrase(" " * LABEL_WIDTH, rank=-1)
    return Block([[blank if i else first, *line] for i, line in enumerate(lines)], rank)
