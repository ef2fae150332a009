"""What is said of a run, on every surface: as it was last approved, and nowhere otherwise than elsewhere."""

from dataclasses import replace

import pytest

from amptui.diagnosis.amp_answer import amp_answer, safe_forms
from amptui.diagnosis.labels import precision_label, precision_letter, short_label
from amptui.diagnosis.summary import summary_lines
from amptui.diagnosis.words import long_words, short_words
from amptui.records.findings import PhaseSeconds, StepTimed
from amptui.records.keeping import WeightsSaved
from amptui.records.own_loop import OTHER_PRECISIONS
from amptui.records.run import Record, RunFinished, Validation
from amptui.telemetry.flops import flops_now
from amptui.telemetry.scaling import ScalerView, judge_scaler
from amptui.telemetry.view import EMPTY_VIEW, NumericsView, SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.frame import Frame
from amptui.tui.layout import RANKED_PANELS
from amptui.tui.panels.screen_state import ScreenState
from tests.builders import fold, make_started, make_steps, make_switch, view_of
from tests.diagnosis import amp_situations
from tests.diagnosis.amp_situations import SITUATIONS, both, in_float8, made
from tests.diagnosis.wording import page_words, table, words_of
from tests.golden import Goldens
from tests.telemetry.record_samples import compared, device, flops, measured, memory, window, xray
from tests.tui import special_views, views
from tests.tui.surfaces import VIEWS

READ = (
    "SessionView",
    "compared",
    "finished",
    "failed",
    "first_impression",
    "no_nvml",
    "explained",
    "nan_losses",
    "8 ranks, slow data",
    "8 ranks in trouble",
    "every_precision",
    "A/B test over",
    "memory by kind",
    "two optimizers",
)
"""The views whose words people read; those of the others have digests."""


def in_other_precision(precision: str) -> list[Record]:
    """FP32, then a precision of a script's own: faster, with less memory, gradients and parts timed."""
    phases = (
        PhaseSeconds(name="forward", host_seconds=1e-4, device_seconds=1e-3),
        PhaseSeconds(name="backward", host_seconds=1e-4, device_seconds=2e-3),
    )
    timed = [
        StepTimed(time=101.0, step=number, precision=name, settling=False, phases=phases)
        for name in ("fp32", precision)
        for number in range(10, 20)
    ]
    return [
        make_started(precision=precision),
        *make_steps(1, 60),
        device(100.061, "fp32", 2**31),
        memory("fp32", activations=10**9, peak=2**31),
        *make_steps(61, 160, precision=precision, grad_max=0.25, step_seconds=0.002),
        device(100.161, precision, 2**30),
        memory(precision, activations=10**8, peak=2**30),
        *timed,
    ]


def screen(view: SessionView, width: int, height: int, focus: str | None = None) -> list[str]:
    canvas = Canvas(width, height)
    Frame().draw(canvas, view, ScreenState(focus=focus, accepts=view.accepts))
    return canvas.lines()


@pytest.mark.parametrize("name", SITUATIONS)
def test_all_that_is_said_in_a_situation_is_as_approved(name: str, goldens: Goldens) -> None:
    goldens.check(f"words/situations/{name}", words_of(amp_situations.view_of(name)))


@pytest.mark.parametrize("name", READ)
def test_all_that_is_said_of_a_view_is_as_approved(name: str, goldens: Goldens) -> None:
    goldens.check(f"words/views/{name.replace('/', '-')}", words_of(VIEWS[name]()))


def test_all_that_is_said_of_the_other_views_is_as_approved(goldens: Goldens) -> None:
    others = [name for name in VIEWS if name not in (*READ, *SITUATIONS, "1,024 ranks")]
    goldens.check_digests({name: words_of(VIEWS[name]()) for name in others})


def test_where_there_is_trouble_every_screen_says_so_and_none_calls_amp_safe() -> None:
    for name in SITUATIONS:
        view = amp_situations.view_of(name)
        answer = amp_answer(view)
        screens = [screen(view, 60, 18), screen(view, 120, 40)]
        texts = ["\n".join(lines) for lines in (*screens, summary_lines(view), page_words(view))]
        for words in ("would survive", "nothing to do", "faster"):
            assert not any(words in text for text in texts), (name, words)
        if answer.cause is None:
            continue
        trouble = safe_forms(answer)
        for lines in screens:
            assert "safe:" not in lines[1]
            assert any(words in lines[1] for words in trouble)
            assert not any(words in lines[1] for words in ("worth it", "the speed", "press c"))


JUDGED = ("the speed of", "less peak memory", "faster", "slower", "would see them", "in float16 ")
"""Words of a judgement that nobody makes of a precision that cannot be switched to."""


@pytest.mark.parametrize("precision", OTHER_PRECISIONS)
def test_a_precision_of_a_script_s_own_is_named_and_not_judged(precision: str, goldens: Goldens) -> None:
    view = view_of(*in_other_precision(precision))
    label = precision_label(precision)
    sign = f"{precision_letter(precision)} {short_label(precision)}"
    screens = [screen(view, 80, 24), screen(view, 120, 40)]
    screens += [screen(view, 120, 40, focus) for focus in RANKED_PANELS if focus != "ranks"]
    for lines in screens:
        assert label in lines[0]
        assert all(f"{sign}▔" in line for line in lines if "▔" in line)
    said = words_of(view)
    goldens.check(f"words/other precisions/{precision}", said)
    for text in ["\n".join(lines) for lines in screens] + [said]:
        assert [words for words in JUDGED if words in text] == []


def test_each_finding_has_its_words_in_full_and_in_little_room(goldens: Goldens) -> None:
    rows: dict[str, dict[str, None]] = {}
    of_ranks = [
        view.ranks for make_view in special_views.RANKED.values() if (view := make_view()).ranks is not None
    ]
    findings = [finding for seen in of_ranks for finding in seen.findings]
    for name in SITUATIONS:
        findings += amp_answer(amp_situations.view_of(name)).findings
    for finding in findings:
        said = [long_words(finding), short_words(finding)]
        rows.setdefault(f"{finding.subject}: {finding.state}", {})[" | ".join(said)] = None
    goldens.check("words/findings", table({name: list(rows[name]) for name in sorted(rows)}))


@pytest.mark.parametrize(("baseline", "low"), [("fp32", "bf16"), ("bf16", "fp8")])
def test_a_log_does_not_repeat_the_answer_with_each_block(baseline: str, low: str) -> None:
    session = fold(in_float8("fp8") if low == "fp8" else both("bf16"))
    rows = (measured(baseline), measured(low, speedup=1.3, speedup_low=1.2, speedup_high=1.4))
    test = compared(900, baseline=baseline, rows=rows, over=False, reason="running", chosen=low)
    start = 901 if low == "fp8" else 601
    session.fold([xray(start - 10, precision=low, loss_scale=None), test])
    keys, previous = set(), low
    for block in range(6):
        name, first = (baseline, low)[block % 2], start + 20 * block
        session.fold([make_switch(first, previous, name), *made(first, first + 19, name)])
        previous = name
        answer = amp_answer(session.view())
        assert (answer.precision, answer.safety, answer.worth) == (low, "safe", "faster")
        keys.add(answer.headline_key)
    assert len(keys) == 1


# ---------------------------------------------------------------------------------------- summaries


def test_summaries_are_as_approved(goldens: Goldens) -> None:
    finished, first, latest = views.finished(), amp_situations.view_of("first_impression"), views.compared()
    counted = flops_now(flops("fp16", flops=10**12, nchw_flops=10**12), 0.0025, make_started())
    numerics = NumericsView(scaler=judge_scaler(ScalerView(applied=300)), window=window(1200), xray=xray(700))
    waiting = tuple(replace(row, data_fraction=0.6) for row in finished.comparison.rows)
    waits = replace(finished.comparison, rows=waiting, speedup=1.0)
    fp32, amp = first.comparison.rows
    half = replace(first.comparison, rows=(replace(fp32, peak_allocated_bytes=1024), amp))
    assert latest.validated is not None
    no_accuracy = Validation(loss=None, accuracy=None, samples=3)
    stopped = RunFinished(time=views.NOW, steps=7, seconds=3700, reason="stopped")
    weights = WeightsSaved(time=views.NOW, step=1204, path="/home/me/mine.pt", averaged=True)
    runs = {
        "stopped": replace(finished, outcome=stopped),
        "no step": replace(EMPTY_VIEW, run_dir="runs/x"),
        "weights saved": replace(finished, weights=weights),
        "FLOPs counted": replace(finished, flops=(counted, replace(counted, flops_per_second=None))),
        "float16 measured": replace(finished, numerics=numerics, comparison=waits),
        "memory measured in one precision": replace(first, comparison=half),
        "validation without accuracy": replace(
            latest, validated=replace(latest.validated, validation=no_accuracy)
        ),
        "stand-in data": views.synthetic(),
    }
    goldens.check("words/summaries", table({name: summary_lines(view) for name, view in runs.items()}))
