"""The one answer on AMP: what it concludes in each situation, and from what; no surface says otherwise."""

import io
import json
import math
import re
from dataclasses import replace
from html import unescape
from typing import Any, get_args

import pytest

from amptui.diagnosis.amp_answer import AmpAnswer, amp_answer, answer_json
from amptui.diagnosis.amp_finding import Finding, Subject
from amptui.diagnosis.answer_words import (
    NO_AMP,
    SIGNS,
    answer_line,
    answer_lines,
    evidence_words,
    finding_words,
    measured_rows,
    safe_words,
    safety_grade,
    short_evidence,
    short_words,
    worth_words,
)
from amptui.diagnosis.speed import why_no_ratio
from amptui.diagnosis.summary import summary_lines
from amptui.process.plain_lines import JsonLines, PlainFront
from amptui.records.findings import OLD_STEPS, Float8LayerWindow
from amptui.reports.export import safety
from amptui.telemetry.session import Session
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.frame import Frame
from amptui.tui.layout import RANKED_PANELS
from amptui.tui.panels.screen_state import ScreenState
from tests.diagnosis.amp_records import both, in_float8, in_float16, made, started, survives, switched
from tests.diagnosis.amp_situations import SITUATIONS, advised_key, view_of
from tests.telemetry import record_samples as samples
from tests.telemetry.whole_runs import session_of

situations = pytest.mark.parametrize("name", SITUATIONS)


def screen(view: SessionView, width: int, height: int, focus: str | None = None) -> list[str]:
    canvas = Canvas(width, height)
    Frame().draw(canvas, view, ScreenState(focus=focus, accepts=view.accepts))
    return canvas.lines()


def panel(view: SessionView) -> list[str]:
    """The rows of the panel that explains the answer, enlarged."""
    return screen(view, 200, 60, "answer")[2:-1]


def card(view: SessionView) -> str:
    """What is read of the page's card."""
    return unescape(re.sub(r"<[^>]*>", "|", safety.conclusions(view) or ""))


def plain(view: SessionView) -> str:
    out = io.StringIO()
    PlainFront(lambda: view, out).update()
    return out.getvalue()


@situations
def test_the_answer_follows_from_what_happened_first(name: str) -> None:
    expected, answer = SITUATIONS[name], amp_answer(view_of(name))
    cause = None if answer.cause is None else (answer.cause.subject, answer.cause.state)
    result = answer.worth, answer.safety, cause, answer.precision
    assert result == (expected.worth, expected.safety, expected.cause, expected.precision), answer_lines(
        answer
    )


def test_what_runs_is_safe_so_far_and_only_what_does_not_would_be() -> None:
    foretold = amp_answer(view_of("foretold_by_xray"))
    assert (foretold.steps, safe_words(foretold)) == (0, "would be safe: gradients agree")
    assert safe_words(replace(foretold, steps=3)) == "safe so far: gradients agree"


def test_a_short_row_says_less_where_it_has_no_room() -> None:
    answer = amp_answer(view_of("fp16_agrees"))
    loss = replace(answer.of("loss"), value=0.0152)
    share = replace(answer.of("float16"), state="kept", value=3e-6)
    for finding, words, fewer in (
        (loss, "FP32 0.500 AMP 0.0152", "0.500 → AMP 0.0152"),
        (share, "<0.001% underflows", "<0.001% lost"),
    ):
        assert short_words(finding, len(words)) == short_words(finding) == words
        assert short_words(finding, len(words) - 1) == fewer


@situations
def test_every_surface_shows_the_same_object(name: str) -> None:
    view = view_of(name)
    answer = amp_answer(view)
    line = answer_line(answer)
    wide = screen(view, 200, 60)[1]
    if answer.precision is None:
        assert NO_AMP in wide
    else:
        assert worth_words(answer) in wide
        assert f"{SIGNS[safety_grade(answer)]} {safe_words(answer)}" in wide
    assert line in summary_lines(view)
    assert line in card(view)
    assert line in plain(view) or not view.step
    out = io.StringIO()
    JsonLines(out).finish(view)
    assert out.getvalue() == f"{answer_json(answer)}\n"
    assert json.loads(out.getvalue())["safety"] == answer.safety


@pytest.mark.ci
@situations
def test_no_surface_says_otherwise(name: str) -> None:
    """Where there is trouble nothing calls AMP safe, and the trouble is on every screen."""
    view = view_of(name)
    answer = amp_answer(view)
    screens = [screen(view, *size) for size in ((60, 18), (80, 24), (120, 40), (200, 60))]
    screens += [screen(view, 120, 40, focus) for focus in RANKED_PANELS if focus != "ranks"]
    texts = ["\n".join(lines) for lines in screens]
    texts += [card(view), "\n".join(summary_lines(view))]
    for text in texts:
        assert "would survive" not in text
        assert "nothing to do" not in text
        assert "faster" not in text
    if answer.cause is None:
        return
    sign = SIGNS[answer.cause.grade]
    for lines in screens:
        assert "safe:" not in lines[1]
        assert f"{sign} {safe_words(answer)}" in lines[1] or f"{short_words(answer.cause)}" in lines[1]


@pytest.mark.ci
@situations
def test_the_panel_shows_what_the_answer_says(name: str) -> None:
    """Each finding of the panel, with its sign, its words and its age; the line names the answer's key."""
    view = view_of(name)
    answer = amp_answer(view)
    if answer.precision is None:
        return
    labels: tuple[Subject, ...] = get_args(Subject)
    rows = {label: line for label in labels for line in panel(view) if line[2:].startswith(label)}
    report = measured_rows(answer, 9)
    for finding in report:
        row = rows[finding.subject]
        assert f"{SIGNS[finding.grade]} {finding_words(finding)[:30]}" in row
        assert (" old " in row) == (finding.freshness == "old")
        assert evidence_words(finding).split(";")[0] in row
    line = screen(view, 200, 60)[1]
    assert advised_key(view) in line
    trouble = answer.cause or answer.doubt
    if trouble is not None:
        assert all(evidence in line for evidence in short_evidence(trouble)[:1])


@pytest.mark.parametrize(
    ("step", "now", "old"),
    [(1, 1 + OLD_STEPS, False), (1, 2 + OLD_STEPS, True), (590, 1180, False), (590, 1181, True)],
)
def test_a_measurement_is_old_once_as_many_steps_were_made_since(step: int, now: int, *, old: bool) -> None:
    view = replace(view_of("fp16_agrees"), step=now)
    xray = samples.xray(step)
    view = replace(view, numerics=replace(view.numerics, xray=xray))
    agreement = amp_answer(view).of("agreement")
    assert (agreement.freshness, agreement.age_steps) == ("old" if old else "fresh", now - step)
    assert agreement.grade == ("neutral" if old else "good")


def test_a_measurement_at_another_scale_is_old() -> None:
    view = view_of("fp16_agrees")
    at_another = replace(view, numerics=replace(view.numerics, xray=samples.xray(590, loss_scale=1024.0)))
    assert amp_answer(at_another).of("agreement").freshness == "old"


NAN_LAYER = (samples.layer("a", math.nan),)


@pytest.mark.parametrize(
    ("precision", "changes"),
    [
        ("fp16", {"loss_amp": math.nan}),
        ("fp16", {"layers": (samples.layer("a", 0.1),)}),
        ("bf16", {"layers": NAN_LAYER, "loss_scale": None}),
    ],
)
def test_age_makes_no_trouble_safe(precision: str, changes: dict[str, Any]) -> None:
    session = Session()
    session.fold([*both(precision), samples.xray(20, precision=precision, **changes), survives(590)])
    view = session.view()
    answer = amp_answer(view)
    assert (answer.safety, answer.cause) == ("unknown", None)
    assert answer.doubt == answer.of("agreement")
    assert safe_words(answer).endswith(", 580 steps ago")
    assert amp_answer(replace(view, step=30)).safety == "error"


def test_a_fact_that_was_no_trouble_is_none_when_it_is_old() -> None:
    session = Session()
    zeros = {"zeros": 10_000, "counts": (0,) * 48, "hypothetical": True}
    session.fold([*both(), samples.xray(590), samples.window(1, **zeros)])
    answer = amp_answer(session.view())
    assert (answer.safety, answer.doubt) == ("safe", None)


@pytest.mark.parametrize(("scale", "safety"), [(8192.0, "warning"), (2.0**20, "unknown")])
def test_underflow_stays_an_alarm_where_the_scale_has_fallen(scale: float, safety: str) -> None:
    session = Session()
    session.fold([*both(), in_float16(0.5, 600), *made(601, 601, "fp16", loss_scale=scale)])
    answer = amp_answer(session.view())
    assert answer.safety == safety
    assert (answer.cause or answer.doubt) == answer.of("float16")
    assert ("1 step ago" in safe_words(answer)) == (safety == "unknown")


def test_what_is_not_measured_says_what_would_measure_it() -> None:
    answer = amp_answer(view_of("never_tried"))
    missing = {finding.subject: finding.measured_by for finding in answer.findings if finding.value is None}
    assert missing["speed"] == missing["overflow"] == "precision"
    assert (missing["agreement"], missing["forward"], missing["float16"]) == ("x-ray", "trace", "histogram")


def fp8_in(name: str) -> tuple[AmpAnswer, list[str]]:
    view = view_of(name)
    return amp_answer(view), [*summary_lines(view), *screen(view, 200, 60), card(view)]


def test_fp8_is_judged_against_bf16_in_speed_memory_and_loss() -> None:
    answer, _ = fp8_in("fp8_and_bf16_in_turns")
    speed, memory, loss = (answer.of(subject) for subject in ("speed", "memory", "loss"))
    assert (answer.baseline, speed.state, speed.value, speed.low, speed.high) == (
        *("bf16", "faster", 1.25, 1.21, 1.29),
    )
    assert memory.state == "less"
    assert memory.value == pytest.approx(0.9)
    assert (loss.state, loss.about, loss.whole) == ("mid-run", "fp8", 300)
    assert answer_line(answer).startswith("FP8: 1.25× the speed of AMP bf16 (1.21 to 1.29); ")


@pytest.mark.parametrize("name", [name for name in SITUATIONS if "fp8" in name and "bf16_after" not in name])
def test_nothing_calls_fp8_amp(name: str) -> None:
    answer, texts = fp8_in(name)
    words = [finding_words(finding) for finding in answer.findings]
    words += [short_words(finding) for finding in answer.findings]
    for text in (*words, answer_line(answer)):
        assert "AMP" not in text.replace("AMP bf16", "")
    assert not any("AMP FP8" in text or "AMP fp8" in text for text in texts)
    assert amp_answer(view_of(name)).headline_key == answer.headline_key


@pytest.mark.parametrize("sides", [("fp32", "bf16"), ("bf16", "fp8")])
def test_a_log_does_not_repeat_the_answer_with_each_block(sides: tuple[str, str]) -> None:
    baseline, low = sides
    session = Session()
    session.fold(in_float8("fp8") if low == "fp8" else both("bf16"))
    rows = (samples.measured(baseline), samples.measured(low, speedup=1.3, speedup_low=1.2, speedup_high=1.4))
    test = samples.compared(900, baseline=baseline, rows=rows, over=False, reason="running", chosen=low)
    start = 901 if low == "fp8" else 601
    session.fold([samples.xray(start - 10, precision=low, loss_scale=None), test])
    keys, previous = set(), low
    for block in range(6):
        name, first = sides[block % 2], start + 20 * block
        session.fold([*switched(first, previous, name), *made(first, first + 19, name)])
        previous = name
        answer = amp_answer(session.view())
        assert (answer.precision, answer.safety, answer.worth) == (low, "safe", "faster")
        keys.add(answer.headline_key)
    assert len(keys) == 1


def test_what_fp8_can_gain_is_an_upper_limit() -> None:
    finding = Finding(subject="limit", state="compute", grade="neutral", value=0.97, about="fp8")
    assert finding_words(finding) == "compute-bound: FP8 can speed up at most 97% of the step"
    assert finding_words(replace(finding, about="bf16")) == "compute-bound: AMP can speed up 97% of the step"


def test_before_its_first_step_fp8_has_no_steps_and_no_key_for_them() -> None:
    finding = amp_answer(session_of(started("fp8-emulated")).view()).of("overflow")
    assert (finding.state, finding.measured_by) == ("never ran", "")
    assert finding_words(finding) == "no FP8 emulated steps yet"
    assert short_words(finding, 12) == "no steps yet"


def test_a_precision_in_its_first_step_has_no_speed_yet_and_no_key_that_tries_it() -> None:
    view = session_of([*started(), *made(1, 300), *switched(301, "fp32", "bf16")]).view()
    speed = amp_answer(view, "bf16").of("speed")
    assert (speed.state, speed.measured_by) == ("no steps", "comparison")
    before = session_of([*started(), *made(1, 300)]).view()
    speed = amp_answer(before, "bf16").of("speed")
    assert (speed.state, speed.measured_by) == ("never ran", "precision")


def test_emulated_fp8_has_losses_and_no_cost_on_any_surface() -> None:
    answer, texts = fp8_in("emulated_fp8_after_bf16")
    assert {answer.of(subject).state for subject in ("speed", "memory", "limit")} == {"emulated"}
    assert answer.of("loss").state == "mid-run"
    rows = [line for line in texts if "emulated" in line]
    assert rows
    assert not any(
        " ms" in line.split("FP8 emulated")[-1] for line in rows if line.startswith("FP8 emulated")
    )
    view = view_of("emulated_fp8_after_bf16")
    assert view.comparison.speedup is view.comparison.memory_saving is None
    assert why_no_ratio(view.comparison).startswith("emulated: ")


@pytest.mark.parametrize("excess", [1e6, math.nan, math.inf])
def test_an_outlier_is_named_by_layer_and_channel(excess: float) -> None:
    operand = samples.float8_operand("weight", 0.99, channel=3, channel_excess=excess)
    window = samples.float8_window(890, Float8LayerWindow(name="mlp.fc", operands=(operand,)))
    session = Session()
    session.fold([*in_float8("fp8"), window])
    answer = amp_answer(session.view())
    assert answer.safety == "warning"
    assert answer.cause == answer.of("float8")
    assert (answer.cause.place, answer.cause.channel) == ("weight of mlp.fc", 3 if excess == 1e6 else None)
    assert ("channel 3 " in safe_words(answer)) == (excess == 1e6)
    assert "weight of mlp.fc" in safe_words(answer)


def test_rows_that_set_the_scale_are_a_warning_that_names_no_channel() -> None:
    operand = samples.float8_operand("input", 0.03, row_error=0.97)
    window = samples.float8_window(890, Float8LayerWindow(name="mlp.fc", operands=(operand,)))
    session = Session()
    session.fold([*in_float8("fp8"), window])
    finding = amp_answer(session.view()).of("float8")
    assert (finding.state, finding.grade, finding.value) == ("loses", "warning", 0.97)
    assert (finding.place, finding.channel) == ("input of mlp.fc", None)


def test_a_run_that_takes_no_requests_is_offered_no_key() -> None:
    lines = screen(view_of("own_loop_that_takes_no_requests"), 120, 40)
    assert not lines[1].rstrip().endswith(("tries FP32", "compares gradients", "interval"))
    assert " p tries FP32" in screen(view_of("recovered"), 120, 40)[1]


def test_an_observed_script_is_not_said_to_lack_a_precision() -> None:
    session = Session()
    refused = dict.fromkeys(("ieee", "tf32", "fp16", "bf16"), "the script chooses")
    session.fold([*started(observed=True, unsupported=refused), *made(1, 50)])
    speed = amp_answer(session.view()).of("speed")
    assert (speed.state, short_words(speed)) == ("observed", "needs watch()")


def test_of_several_amp_precisions_the_speed_is_that_of_the_one_in_question() -> None:
    records = [*both("fp16", 300), *samples.steps(601, 640, precision="bf16", step_seconds=0.003)]
    session = Session()
    session.fold(records)
    answer = amp_answer(session.view())
    assert answer.precision == "bf16"
    assert answer.of("speed").value == pytest.approx(4 / 3)
