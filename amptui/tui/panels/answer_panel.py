"""The answer on AMP: the line below the header, and the panel with what it follows from."""

from collections.abc import Mapping

from amptui.base import units
from amptui.diagnosis.activity import switch_target
from amptui.diagnosis.amp_answer import (
    AmpAnswer,
    amp_answer,
    interval_words,
    measured_rows,
    next_measurement,
    no_amp_words,
    safe_forms,
    worth_forms,
)
from amptui.diagnosis.speed import running
from amptui.diagnosis.words import SIGNS, SUBJECTS, age_words, evidence_words, long_words, short_words
from amptui.telemetry.finding import Finding, Measurement
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas, text_width
from amptui.tui.keys import KEYS, REQUESTS
from amptui.tui.panels.phrases import (
    GAP,
    Phrase,
    Word,
    fitting,
    phrase,
    precision_word,
    whole_words,
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

_CHECKS: tuple[Measurement, ...] = ("histogram", "x-ray", "trace")
"""What checks the safety, in the order in which it is offered."""

_WORTH_STYLES: Mapping[str, int] = {"faster": Style.GOOD | BOLD, "slower": Style.WARNING | BOLD}

_LABEL_WIDTH = 11
"""Room for ``bottleneck``."""

_EVIDENCE_FROM = 70
"""With so many columns each row says what it is from."""

_VALUE_WIDTH = 44


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


def unchecked_words(answer: AmpAnswer, screen: ScreenState) -> str:
    """``not checked yet: press f, x or n``: the keys of what tells of its safety and was never measured."""
    open_ones = [finding for finding in answer.findings if finding.freshness == "never measured"]
    keys = [key_of(way, screen) for way in _CHECKS if any(one.measured_by == way for one in open_ones)]
    *others, last = filter(None, keys) if any(keys) else ("",)
    either = f"{', '.join(others)} or {last}" if others else last
    return f"not checked yet: press {either}" if last else ""


def draw(canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
    """A row for each finding: value, verdict, whether it is old, and the key that measures it.

    What was never measured is one line below them.
    """
    answer = amp_answer(view)
    unchecked = unchecked_words(answer, screen)
    rows = measured_rows(answer, canvas.height - bool(unchecked))
    widest = max((text_width(short_words(finding)) for finding in rows), default=0)
    for y, finding in enumerate(rows):
        _draw_row(canvas, y, finding, screen, widest)
    canvas.text(0, len(rows), unchecked, Style.DIM)


def _draw_row(canvas: Canvas, y: int, finding: Finding, screen: ScreenState, widest: int) -> None:
    canvas.text(0, y, SUBJECTS.get(finding.subject, finding.subject), Style.DIM)
    roomy = canvas.width >= _EVIDENCE_FROM
    key, end = key_of(finding.measured_by, screen), canvas.width
    if key:
        canvas.text(end - 1, y, key, Style.KEY)
        end -= 2
    style = GRADE_STYLES[finding.grade]
    canvas.text(_LABEL_WIDTH, y, SIGNS[finding.grade], style)
    start = _LABEL_WIDTH + 2
    interval = "" if finding.state == "open" else interval_words(finding)
    words = long_words(finding)
    if not roomy or text_width(words) > max(widest, _VALUE_WIDTH):
        words = short_words(finding)
    dim = finding.grade == "unknown" or (finding.subject == "speed" and not interval)
    value_style = style if finding.is_trouble else Style.DIM if dim else int(Style.TEXT)
    x = canvas.text(start, y, whole_words(words, end - start), value_style)
    if interval and x + 2 + text_width(interval) <= end:
        x = canvas.text(x + 2, y, interval, Style.DIM)
    old = age_words(finding.age_steps or 0) if finding.freshness == "old" else ""
    evidence = evidence_words(finding) if roomy else old
    at = max(x, start + min(widest, _VALUE_WIDTH)) + 2 if roomy else max(x + 2, end - len(evidence))
    if at + text_width(evidence) <= end:
        canvas.text(at, y, evidence, Style.WARNING if old else Style.DIM)
