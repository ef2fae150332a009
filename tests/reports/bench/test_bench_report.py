"""What is said of a measurement, from views made by hand."""

import io
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len

from amptui.diagnosis.bottleneck import evidence, limit, why_slower
from amptui.diagnosis.speed import explanations
from amptui.records.findings import Float8Layers, LayerLeftOut, PairCompared, PrecisionMeasured
from amptui.records.run import PhaseChanged
from amptui.reports.bench.measure import _print
from amptui.reports.bench.progress import Progress, progress_text
from amptui.reports.bench.results import Measured, float8_hints, report_json, report_lines
from amptui.telemetry.flops import flops_now
from amptui.telemetry.view import Comparison, SessionView
from tests import poison
from tests.reports.bench.measurements import RUN, amp, bench, measured, timing
from tests.telemetry import record_samples as samples


def lines(*sizes: Measured, **options: Any) -> list[str]:
    return report_lines(bench(*sizes, **options))


def test_a_measurement_reads_like_this() -> None:
    how = "12 rounds of 20 steps each, alternating on the same weights, without warm-up"
    assert lines(measured(amp()), channels_last=True)[:6] == [
        "mnist-deep on NVIDIA H200, MNIST, channels last",
        "",
        f"batch 256: {how}; all intervals are narrow",
        "precision     step  samples/s              speed-up  peak allocated         losses  skipped",
        "FP32       20.0 ms   12.8 k/s              baseline        1.00 GiB  2.30 to 0.100        0",
        "AMP fp16   12.5 ms   20.5 k/s  1.60× (1.58 to 1.62)         512 MiB  2.30 to 0.100        2",
    ]


def test_a_precision_without_applied_steps_has_no_time_and_the_reason() -> None:
    empty = replace(amp(), blocks=0, steps=0, step_seconds=None, samples_per_second=None, skipped=26)
    empty = replace(empty, speedup=None, speedup_low=None, speedup_high=None)
    report = lines(measured(empty))
    row = next(line for line in report if line.startswith("AMP fp16"))
    assert re.split("  +", row)[1:4] == ["n/a", "n/a", "n/a"]
    assert "not measured: AMP fp16: too few applied steps: the scaler skipped 26" in report


def test_what_was_counted_is_told_at_the_speed_of_the_comparison() -> None:
    head = samples.product("head", sizes=(256, 10, 512))
    flops = [samples.flops("fp32", flops=10**12), samples.flops("fp16", flops=10**12, uncounted=("mine",))]
    flops[1] = replace(flops[1], unaligned_flops=5 * 10**11, unaligned=(head,))
    size = measured(amp(), flops=tuple(flops_now(item, 9.0, RUN) for item in flops))
    report = lines(size)
    head_line, baseline, half = report[3:6]
    assert re.search(r"speed-up +achieved +MFU +peak allocated", head_line)
    assert re.search(r"baseline +50 TFLOP/s +75% ", baseline)
    assert re.search(r"\) +≥80 TFLOP/s +≥8% ", half)
    assert sum("multiple of 8" in line and line.startswith("hint: ") for line in report) == 1
    words = report_json(bench(size))["measured"][0]["flops"]
    assert [item["flops_per_second"] for item in words] == pytest.approx([50e12, 80e12])
    assert [item["mfu"] for item in words] == pytest.approx([50 / 67, 80 / 989.5])
    assert [item["lower_bound"] for item in words] == [False, True]


def test_where_sizes_are_mixed_the_speed_is_that_of_the_counted_size() -> None:
    altered = replace(flops_now(samples.flops("fp32", flops=10**12), 0.05, RUN), other_sizes=True)
    (report,) = report_json(bench(measured(amp(), flops=(altered,))))["measured"][0]["flops"]
    assert report["flops_per_second"] == pytest.approx(20e12)


def test_where_shapes_vary_no_number_is_told() -> None:
    varied = flops_now(samples.flops("fp32", shapes_vary=True), 0.05, RUN)
    size = measured(amp(), flops=(varied,))
    (report,) = report_json(bench(size))["measured"][0]["flops"]
    assert (report["flops_per_step"], report["flops_per_second"], report["mfu"]) == (None, None, None)
    report_text = lines(size)
    assert not any("achieved" in line for line in report_text)
    assert sum(line.startswith("hint: no FLOP/s: ") for line in report_text) == 1


def test_on_a_cpu_nothing_is_told_of_a_peak() -> None:
    run = replace(RUN, device="cpu", device_name="NVIDIA H200")
    flops = tuple(flops_now(samples.flops(name), 9.0, run) for name in ("fp32", "fp16"))
    report = lines(measured(amp(), flops=flops, run=run))
    assert "achieved" in report[3]
    assert "MFU" not in report[3]


def test_a_gain_is_quoted_and_not_explained_away() -> None:
    size = measured(amp())
    report = lines(size)
    (card,) = size.cards
    assert card in report
    assert card.startswith("AMP fp16 1.60×")
    assert not [line for line in report if line.startswith("why:")]


def test_where_amp_gives_nothing_the_report_says_what_was_measured_about_it() -> None:
    timings = (
        timing("fp32", 0.005),
        timing("fp16", 0.004, bound="launch"),
    )
    comparison = Comparison(memory_saving=-0.18)
    size = measured(amp(1.01), timings=timings, comparison=comparison)
    (memory,) = explanations(size.view)
    assert memory.startswith("18% more ")
    assert [line for line in lines(size) if line.startswith("why: ")] == [
        f"why: {memory}",
        f"why: AMP fp16 is launch-bound: {evidence(timings[1])}",
        f"why: {limit(timings[0])}",
        "why: AMP fp16: forward 4.00 ms instead of 5.00 ms, backward 8.00 ms instead of 10.0 ms",
    ]


def test_where_amp_is_slower_the_report_says_in_what_and_promises_nothing() -> None:
    timings = timing("fp32", 0.005), timing("fp16", 0.18)
    (why,) = measured(amp(1 / 36), timings=timings).reasons
    assert why == why_slower(*timings)
    assert "180 ms" in why


def test_json_has_what_each_timing_means_in_words() -> None:
    timings = (timing("fp32", 0.005, bound="unknown"), timing("fp16", 0.004, bound="launch"))
    (size,) = report_json(bench(measured(amp(), timings=timings)))["measured"]
    fp32, fp16 = size["timings"]
    assert (fp32["bound"], fp16["bound"]) == ("", "launch")
    assert fp16["evidence"].startswith("the host takes 18.0 ms")
    assert fp16["limit"] == "launching kernels takes the same time in any precision: little to gain"
    assert set(fp16) == {"precision", "steps", "phases", "bound", "evidence", "limit"}


def test_where_nothing_explains_it_that_is_said() -> None:
    (why,) = measured(amp(1.02)).reasons
    assert why == "AMP fp16 gained little, and no measurement shows why; see `amptui doctor`"
    (why,) = measured(amp(0.9)).reasons
    assert why.startswith("AMP fp16 was slower")
    (why,) = measured(replace(amp(0.97), speedup_low=0.7, speedup_high=1.3)).reasons
    assert "slower" not in why


def test_a_precision_that_failed_is_named_with_its_error() -> None:
    size = measured(amp())
    assert size.view.compared is not None
    altered = replace(size.view.compared, failed={"bf16": "no kernel for bfloat16"})
    report = lines(replace(size, view=replace(size.view, compared=altered)))
    assert "not measured: AMP bf16: failed in its first step: no kernel for bfloat16" in report


def test_each_size_has_its_table_and_one_that_failed_its_error() -> None:
    failed = measured(batch_size=2048, error="no memory left", compared=None)
    report = lines(measured(amp(0.5), batch_size=32), measured(amp(2.0), batch_size=1024), failed)
    assert [line.partition(":")[0] for line in report if line.startswith("batch ")] == [
        "batch 32",
        "batch 1,024",
        "batch 2,048",
    ]
    assert [line.split()[6] for line in report if line.startswith("AMP fp16  ")] == ["0.50×", "2.00×"]
    assert "batch 2,048: no memory left" in report


def test_what_others_measured_stands_beside_ours_and_is_marked_as_theirs() -> None:
    assert lines(measured(amp()))[-2:] == [
        "for comparison, not measured here:",
        "  the original tutorial, unknown GPU: FP32 22.1 s per epoch, AMP 12.95 s, 1.71 times",
    ]
    assert any("A100-80G: TF32 938 images/s" in line for line in lines(measured(amp()), model="resnet50"))
    assert not any("not measured here" in line for line in lines(measured(amp()), model="mine/resnet50.py"))


def test_json_keeps_numbers_that_are_none_or_not_finite() -> None:
    row = amp(last_loss=float("nan"), peak_allocated_bytes=None)
    content = json.loads(json.dumps(report_json(bench(measured(row))), allow_nan=False))
    (size,) = content["measured"]
    assert size["rows"][1]["last_loss"] == "nan"
    assert size["rows"][1]["peak_allocated_bytes"] is None
    assert content["not_measured_here"] == [
        "the original tutorial, unknown GPU: FP32 22.1 s per epoch, AMP 12.95 s, 1.71 times"
    ]


def test_nothing_measured_is_an_object_too() -> None:
    failed = Measured(batch_size=None, view=SessionView(), error="no such layer")
    assert report_lines(bench(failed)) == ["", "batch n/a: no such layer"]
    report = report_json(bench(failed))
    assert (report["machine"], report["measured"][0]["rows"]) == (None, [])


@pytest.mark.parametrize(
    ("rounds", "said"), [(2, "batch 256  round  3 of at most 24  "), (23, "round 24 of at most 24")]
)
def test_progress_tells_the_round_that_runs_and_the_ratios_so_far(rounds: int, said: str) -> None:
    view = measured(amp()).view
    assert view.compared is not None
    assert progress_text(view) == "", "the result is told instead"
    running = replace(view.compared, rounds=rounds, over=False, reason="running")
    text = progress_text(replace(view, precision="fp16", compared=running))
    assert said in text
    assert text.endswith("AMP fp16  AMP fp16 1.60× (1.58 to 1.62)")


def test_names_and_errors_cannot_steer_what_shows_the_tables() -> None:
    texts = poison.words()
    run = poison.poisoned(RUN, texts)
    sizes = [measured(amp(), error=next(texts), run=run) for _ in poison.STEERING]
    altered = replace(bench(*sizes, model=next(texts)), left_out={next(texts): next(texts)})
    for encoding in ("utf-8", "ascii"):
        written = io.BytesIO()
        out = io.TextIOWrapper(written, encoding)
        _print(altered, out, json=False)
        assert not poison.strange_in_lines(written.getvalue())
        assert b"5;41mblink" in written.getvalue()


@pytest.mark.parametrize("on_terminal", [True, False])
def test_progress_stays_in_its_line(on_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return on_terminal

    monkeypatch.setenv("COLUMNS", "40")
    out = Stream()
    progress = Progress(out)
    for text in (*poison.STEERING, poison.FORGED, "漢字" * 30):
        phase = PhaseChanged(time=0.0, phase="data", detail=f"{text} 漢字{text * 9}")
        progress.update(SessionView(phase=phase))
        progress.line(text)
    written = out.getvalue()
    if on_terminal:
        rewritten = re.findall("\r([^\r\n]+)\x1b\\[K", written)
        assert len(rewritten) == len(poison.STEERING) + 2
        assert max(map(cell_len, rewritten)) <= 39
        written = written.replace("\x1b[K", "").replace("\r", "")
    assert not poison.strange_in_lines(written.encode())


# ------------------------------------------------------------------------------------- FP8


def bf16_and_fp8(faster: float) -> tuple[PrecisionMeasured, PrecisionMeasured]:
    """AMP bf16 at 1.6 times the speed of FP32, and FP8 that is so many times as fast as that."""
    return amp(1.6, precision="bf16", skipped=0), amp(1.6 * faster, precision="fp8", skipped=0)


def test_fp8_that_is_no_faster_than_bf16_gained_little_though_it_beats_fp32() -> None:
    size = measured(*bf16_and_fp8(1.02))
    assert size.reasons == ["FP8 gained little, and no measurement shows why; see `amptui doctor`"]
    (hint,) = float8_hints(size, bench(size).request)
    assert "`amptui bench mnist-deep --compile default`" in hint
    assert float8_hints(size, bench(size, compile_mode="default").request) == []
    assert f"hint: {hint}" in lines(size)
    faster = measured(*bf16_and_fp8(1.3))
    assert (faster.reasons, float8_hints(faster, bench(faster).request)) == ([], [])


def test_without_bf16_beside_it_fp8_is_judged_against_the_baseline() -> None:
    assert measured(bf16_and_fp8(1.02)[1]).reasons == []
    assert measured(amp(1.01, precision="fp8")).reasons != []


def test_an_interval_of_fp8_over_bf16_counts_where_the_comparison_has_one() -> None:
    size = measured(*bf16_and_fp8(0.9))
    assert size.reasons == ["FP8 was slower, and no measurement shows why; see `amptui doctor`"]
    pair = PairCompared(precision="fp8", than="bf16", speedup=0.9, speedup_low=0.7, speedup_high=1.1)
    assert size.view.compared is not None
    compared = replace(size.view.compared, pairs=(pair,))
    (reason,) = replace(size, view=replace(size.view, compared=compared)).reasons
    assert reason.startswith("FP8 gained little")


def test_where_fp8_took_its_time_is_told_beside_bf16() -> None:
    timings = timing("fp32", 0.009), timing("bf16", 0.004), timing("fp8", 0.006)
    (reason,) = measured(*bf16_and_fp8(0.7), timings=timings).reasons
    assert reason == why_slower(timings[1], timings[2])
    assert reason.startswith("FP8 took longer than AMP bf16")


def test_of_many_layers_outside_float8_the_first_few_are_named_and_the_rest_counted() -> None:
    left_out = tuple(
        LayerLeftOut(name=f"convs.{number}", kind="Conv2d", why="kind", shape=(64, 64, 3, 3))
        for number in range(5)
    )
    layers = Float8Layers(
        time=100.0,
        step=20,
        precision="fp8",
        recipe="tensorwise",
        emulated=False,
        layers=1,
        names=("head",),
        parameters=1040,
        left_out=left_out,
        left_out_count=70,
    )
    report = lines(replace(measured(*bf16_and_fp8(1.3)), float8=layers))
    start = next(at for at, line in enumerate(report) if " layers in float8" in line)
    names = [line for line in report[start + 1 :] if line.startswith("  convs.")]
    assert len(names) == 3
    assert "  and 67 more in bfloat16" in report
    assert report[start + 5].startswith("  in float8: ")
