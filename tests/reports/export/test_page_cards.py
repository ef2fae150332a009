"""The page's cards, each from a view made by hand: what they say and what they leave out."""

import re
from dataclasses import replace
from html import unescape

import pytest

from amptui.diagnosis.amp_answer import amp_answer
from amptui.diagnosis.answer_words import answer_line, measured_at
from amptui.diagnosis.float16_verdicts import at_scale, distance, place_of, underflow_words
from amptui.diagnosis.rank_words import rank_lost, speed_sentence
from amptui.diagnosis.speed import provisional_lines, result_cards, uncounted, why_no_ratio
from amptui.records.findings import MemoryBreakdown, MemoryKind, PhaseSeconds
from amptui.reports.export import float16_histogram_svg, run_details, safety, sections
from amptui.reports.export.float8_card import float8_operands
from amptui.reports.export.markup import Markup, card, facts, paragraph
from amptui.reports.export.ranks_card import ranks_card
from amptui.telemetry.events import Event
from amptui.telemetry.flops import flops_now
from amptui.telemetry.view import Comparison, PrecisionTiming, SessionView
from tests.telemetry import record_samples
from tests.tui import numerics_views, rank_views, views
from tests.tui.overlays.opened import OPERANDS, float8_xray
from tests.tui.view_parts import note


def words(markup: Markup | None) -> str:
    """What is read, the elements parted by a bar."""
    assert markup is not None
    return unescape(re.sub(r"[|]+", "|", re.sub(r"<[^>]*>", "|", markup)))


def test_the_comparison_has_baseline_and_amp_and_the_gain() -> None:
    view = views.compared()
    turned = replace(view, comparison=replace(view.comparison, rows=view.comparison.rows[::-1]))
    said = words(sections.comparison(turned))
    assert "|■ FP32|▲ AMP fp16|median step|3.91 ms|2.02 ms|" in said
    assert "the speed of" not in said, "the answer says it"
    (left_out,) = uncounted(view)
    assert left_out in said
    assert "GPU utilization" not in said, "nobody measured it"


def test_what_each_precision_achieved_is_beside_the_peak_if_it_is_known() -> None:
    run = record_samples.run()
    full = flops_now(record_samples.flops(flops=10**12), 0.02, run)
    half = flops_now(record_samples.flops("fp16", flops=10**12, nchw_flops=10**12), 0.0025, run)
    said = words(sections.comparison(replace(views.compared(), flops=(full, half))))
    assert "|achieved|50 TFLOP/s|400 TFLOP/s|MFU|75%|40%|" in said
    assert "convolutions in NCHW" in said
    unknown = replace(full, peak_flops_per_second=None), replace(half, peak_flops_per_second=None)
    said = words(sections.comparison(replace(views.compared(), flops=unknown)))
    assert "|achieved|50 TFLOP/s|400 TFLOP/s|" in said
    assert "MFU" not in said


def test_an_ab_result_replaces_the_running_comparison() -> None:
    compared = record_samples.compared()
    view = replace(views.compared(), compared=compared)
    said = words(sections.comparison(view))
    (card,) = result_cards(compared, view.run)
    assert card in said
    assert "1.71×" in card
    assert "1.94×" not in said


def test_a_page_mentions_no_key() -> None:
    assert "|FP32 and AMP did not both run: nothing to compare|" in words(
        sections.comparison(views.fp32_only())
    )
    tally = replace(views.compared().comparison, memory_saving=0.01)
    said = words(sections.comparison(replace(views.compared(), comparison=tally)))
    assert "which stay FP32|" in said
    assert "press" not in said


def test_a_missing_comparison_has_a_reason() -> None:
    tally = replace(views.compared().comparison, speedup=None, memory_saving=None, missing="more steps")
    few = tuple(replace(row, steps=12) for row in tally.rows)
    view = replace(views.compared(), comparison=replace(tally, rows=few))
    assert f"|{why_no_ratio(view.comparison)}|" in words(sections.comparison(view))
    assert "12 of 20" in why_no_ratio(view.comparison)
    assert sections.comparison(SessionView(comparison=Comparison())) is None


def test_a_first_impression_is_called_one() -> None:
    view = views.first_impression()
    said = words(sections.comparison(view))
    assert "|median step|~583 ms|~316 ms|" in said
    (provisional,) = provisional_lines(view.comparison)
    assert provisional in said
    assert "left out" not in said


def test_unmeasured_steps_are_counted() -> None:
    view = replace(views.compared(), unmeasured_steps=12)
    left_out, unmeasured = uncounted(view)
    assert f"{left_out}; {unmeasured}" in words(sections.comparison(view))
    assert unmeasured.endswith(" 12")


def test_the_answer_has_the_screen_s_signs_and_what_each_is_from() -> None:
    view = numerics_views.healthy()
    said = words(safety.conclusions(view))
    assert f"|{answer_line(amp_answer(view))}|" in said
    assert "1.94×" in said
    assert "|loss scaler|no overflow: no skip in the last 100 steps: 1,204 without one|" in said
    scale = 65536.0
    rows = (
        ("float16", underflow_words(3.2e-05, scale), measured_at(1184, "fp16")),
        ("forward", "largest 41.2 k of 65,504", measured_at(1100, "fp16")),
        ("agreement", "worst 0.999 in features.12", measured_at(1000, "fp16", scale)),
    )
    for subject, finding, evidence in rows:
        assert f"|✔| |{subject}| {finding}| {evidence}|" in said
    at = at_scale(scale, hypothetical=False)
    assert f"|headroom|3.6 doublings {at}; least 2.4 of the last 256|" in said
    assert safety.conclusions(SessionView()) is None


def test_headroom_outside_fp16_is_hypothetical() -> None:
    view = numerics_views.numerics(views.fp32_only(), hypothetical=True, min_headroom=float("-inf"))
    at = at_scale(65536.0, hypothetical=True)
    assert f"3.6 doublings {at}; NaN/Inf in the last 256" in words(safety.conclusions(view))


def test_the_bars_have_the_colours_of_their_zones() -> None:
    histogram = numerics_views.float16_window(-8, worst=numerics_views.LOSING)
    markup = safety.window(histogram)
    assert markup is not None
    classes = re.findall(r'<rect class="(\w+)"', markup)
    first = histogram.first_exponent
    assert classes == [float16_histogram_svg.zone(first + i) for i in range(len(histogram.counts))]
    assert classes == sorted(classes, key=["flushed", "subnormal", "normal", "overflow"].index)
    said = words(markup)
    assert "All gradients of step 1,184 by exponent, at scale 65,536." in said
    assert "|features.13.conv.weight|4.0%|3.1%|20.8%|0%|" in said


@pytest.mark.parametrize(
    ("exponent", "zone"),
    [
        (-60, "flushed"),
        (-26, "flushed"),
        (-25, "subnormal"),
        (-15, "subnormal"),
        (-14, "normal"),
        (15, "normal"),
        (16, "overflow"),
        (40, "overflow"),
    ],
)
def test_zones_are_those_of_float16(exponent: int, zone: str) -> None:
    assert float16_histogram_svg.zone(exponent) == zone


def test_trace_and_x_ray_list_their_findings() -> None:
    trace = numerics_views.traced()
    said = words(safety.trace(trace))
    for module in trace.nearest:
        assert f"{place_of(module)}|{distance(module)}|" in said
    assert "features.12.conv" in said
    assert "|features.12|Conv2d|0.99910|0.0400|0.20%|float16|" in words(safety.xray(numerics_views.xrayed()))
    assert safety.trace(None) is safety.xray(None) is safety.window(None) is None


def test_an_x_ray_in_fp8_has_all_three_comparisons() -> None:
    said = words(safety.xray(float8_xray()))
    assert "|loss in AMP bf16|2.50|loss in FP8 emulated|2.51|" in said
    assert "more than in bf16; worst 0.712 in blocks.0.mlp.fc" in said
    assert "|blocks.0.mlp.fc|Linear|float8|0.71234|0.99991|0.71222|0.00900|0.00410|0.0610|0.31%|" in said
    assert "|head|Linear|bfloat16|0.99921|" in said


def test_what_float8_keeps_of_each_operand_is_in_the_page_the_worst_first() -> None:
    said = words(float8_operands(OPERANDS.numerics.float8_window))
    assert "Step 1,200, FP8 emulated, recipe rowwise." in said
    assert "loses most of the weight of blocks.0.mlp.fc and 1 other operand: channel 3" in said
    worst = "|blocks.0.mlp.fc weight|E4M3|96.8%|2.1%|0.20%|93.8%|1.2%|4.8%|0%|2.00|3|997 k|"
    zeros = "|head input|E4M3|n/a|n/a|100%|"
    assert said.index(worst) < said.index("|blocks.0.attn.qkv input|E4M3|2.6%|") < said.index(zeros)
    assert float8_operands(None) is None


def test_time_is_shown_by_phase_on_the_gpu_s_or_host_s_clock() -> None:
    phases = (
        PhaseSeconds(name="input", host_seconds=0.001, device_seconds=None),
        PhaseSeconds(name="forward", host_seconds=0.0005, device_seconds=0.002),
    )
    fp32 = PrecisionTiming(
        precision="fp32", steps=9, phases=phases, bound="compute", utilization_percent=98.0
    )
    fp16 = PrecisionTiming(precision="fp16", steps=9, phases=phases[1:])
    said = words(sections.time_spent(replace(views.compared(), timings=(fp32, fp16))))
    assert "|input|1.00 ms|–|forward|2.00 ms|2.00 ms|" in said
    assert "|■ FP32| compute-bound; the loop waits for data 33% of the step; " in said
    assert sections.time_spent(views.compared()) is None


def test_memory_is_shown_by_kind_and_dtype() -> None:
    weights = MemoryKind(kind="weights", dtype="float32", size_bytes=1024**2)
    copies = MemoryKind(kind="cast copies", dtype="float16", size_bytes=1024**2 // 2)
    breakdowns = (
        MemoryBreakdown(time=0.0, step=1, precision="fp32", kinds=(weights,), peak_allocated_bytes=None),
        MemoryBreakdown(
            time=0.0, step=9, precision="fp16", kinds=(weights, copies), peak_allocated_bytes=1024**3
        ),
    )
    said = words(sections.memory_spent(replace(views.compared(), memory=breakdowns)))
    assert "|weights float32|1.00 MiB|1.00 MiB|cast copies float16|–|512 KiB|peak|n/a|1.00 GiB|" in said
    assert sections.memory_spent(views.compared()) is None


def test_events_are_the_newest_first_and_older_ones_open_on_request() -> None:
    events = tuple(
        Event(views.NOW - n, 100 - n, "note", "warning", note(f"event {n}" + "\nmore" * (n == 3)))
        for n in range(run_details.EVENTS_IN_SIGHT + 7)
    )
    markup = run_details.events(replace(views.compared(), events=events))
    said = words(markup)
    assert "|0:41|step 100|⚠|event 0|" in said
    assert f"|7 older events|0:{41 - run_details.EVENTS_IN_SIGHT}|" in said
    assert "<details><summary>event 3</summary><pre>more</pre></details>" in (markup or "")
    assert run_details.events(SessionView()) is None


def test_an_empty_card_is_none() -> None:
    assert card("title", None, None) is None
    assert facts([("a", ""), ("b", "")]) is None
    assert paragraph("") is None


def test_the_ranks_have_a_row_each_and_the_slow_one_a_sentence() -> None:
    view = rank_views.view(8, "input")
    assert view.ranks is not None
    said = words(ranks_card(view))
    assert said.startswith(f"|8 ranks, DDP|⚠| |speed| {speed_sentence(view.ranks, view.run)}")
    assert "rank 5 " in said
    assert (
        "|rank|device|data wait|compute|step|peak|GPU memory|grad norm|skipped|own Inf|clock|"
        in said.replace("||", "|rank|", 1)
    )
    assert [f"|{rank}|node-1 cuda:{rank}|" in said for rank in range(8)] == [True] * 8
    assert "Times are medians of the last 20 samples" in said
    assert ranks_card(views.compared()) is None


def test_of_many_ranks_a_page_has_percentiles_and_those_that_stand_out() -> None:
    said = words(ranks_card(rank_views.view(1024, "compute")))
    assert "|all ranks|least|10%|median|90%|most|step|" in said
    assert "Of 1,024 ranks those that stand out have a row." in said
    assert "|682|node-86 cuda:2|" in said


def test_ranks_in_trouble_are_on_the_page() -> None:
    view = rank_views.ALL["8 ranks in trouble"]()
    assert view.ranks is not None
    (lost,) = view.ranks.lost
    assert f"|✖| |ranks| {rank_lost(lost)}|" in words(ranks_card(view))
    assert lost.rank == 6
    assert "no numbers of the ranks in the journal" in words(ranks_card(rank_views.unsampled()))
