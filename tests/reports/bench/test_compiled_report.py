"""What a benchmark of eager and compiled steps says, and which command it names for launch-bound steps."""

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from amptui.cli import build_parser
from amptui.diagnosis.bottleneck import evidence
from amptui.diagnosis.speed import times_speed
from amptui.recipe.request import BenchRequest, TrainRequest
from amptui.records.findings import PairCompared
from amptui.reports.bench.results import Bench, bench_command, report_json, report_lines
from amptui.runs.rundir import default_data_dir
from amptui.telemetry.view import Comparison, PrecisionStats
from tests.reports.bench.measurements import BASELINE, amp, bench, measured, timing


def both_ways(mode: str = "reduce-overhead", gain: float = 1.8, **view: Any) -> Bench:
    """FP32 and AMP, eagerly and compiled."""
    sides = [
        replace(BASELINE, precision="fp32 eager"),
        amp(gain, precision="fp32", peak_allocated_bytes=None),
        amp(1.02, precision="fp16 eager"),
        amp(2.4, precision="fp16"),
    ]
    size = measured(compile_seconds={"fp32": 61.2, "fp16": 9.62}, **view)
    assert size.view.compared is not None
    pairs = [("fp32", "fp32 eager", gain), ("fp16", "fp16 eager", 2.35), ("fp16", "fp32", 1.3)]
    compared = replace(
        size.view.compared,
        baseline="fp32 eager",
        rows=tuple(sides),
        pairs=tuple(
            PairCompared(precision=name, than=than, speedup=x, speedup_low=x - 0.05, speedup_high=x + 0.05)
            for name, than, x in pairs
        ),
    )
    return bench(
        replace(size, view=replace(size.view, compared=compared)), model="mine.py", compile_mode=mode
    )


def test_eager_and_compiled_steps_have_a_row_each_and_the_gain_its_interval() -> None:
    result = both_ways()
    report = report_lines(result)
    assert report[0] == "mnist-deep on NVIDIA H200, MNIST, eager and compiled (reduce-overhead)"
    assert [re.split("  +", line) for line in report[3:8]] == [
        [
            *("precision", "step", "samples/s", "speed-up", "by compiling"),
            *("peak allocated", "losses", "skipped"),
        ],
        ["FP32 eager", "20.0 ms", "12.8 k/s", "baseline", "n/a", "1.00 GiB", "2.30 to 0.100", "0"],
        [
            *("FP32 compiled", "11.1 ms", "23.0 k/s", "1.80× (1.78 to 1.82)", "1.80× (1.75 to 1.85)"),
            *("n/a", "2.30 to 0.100", "2"),
        ],
        [
            *("AMP fp16 eager", "19.6 ms", "13.1 k/s", "1.02× (1.00 to 1.04)", "n/a"),
            *("512 MiB", "2.30 to 0.100", "2"),
        ],
        [
            *("AMP fp16 compiled", "8.33 ms", "30.7 k/s", "2.40× (2.38 to 2.42)", "2.35× (2.30 to 2.40)"),
            *("512 MiB", "2.30 to 0.100", "2"),
        ],
    ]
    (size,) = result.sizes
    assert [line for line in report if line in size.cards] == size.cards
    assert [card.partition("×")[0] for card in size.cards] == [
        "FP32 compiled 1.80",
        "AMP fp16 eager 1.02",
        "AMP fp16 compiled 2.40",
        "AMP fp16 compiled 2.35",
        "AMP fp16 compiled 1.30",
    ]
    assert "compiling took, in no step's time: FP32 1:01, AMP fp16 9.62 s" in report


def test_json_has_what_compiling_gained_only_if_it_was_asked_for() -> None:
    report = report_json(both_ways())
    assert report["compile_mode"] == "reduce-overhead"
    (size,) = report["measured"]
    assert [row["precision"] for row in size["rows"]] == ["fp32 eager", "fp32", "fp16 eager", "fp16"]
    assert size["pairs"][0] == {
        "precision": "fp32",
        "than": "fp32 eager",
        "speedup": 1.8,
        "speedup_low": 1.75,
        "speedup_high": 1.85,
    }
    assert size["compile_seconds"] == {"fp32": 61.2, "fp16": 9.62}
    (eager,) = report_json(bench(measured(amp())))["measured"]
    assert set(size) - set(eager) == {"pairs", "compile_seconds", "hints"}


def hints(found: Bench) -> list[str]:
    return [line.removeprefix("hint: ") for line in report_lines(found) if line.startswith("hint: ")]


LAUNCH_BOUND = (timing("fp32", 0.005), timing("fp16", 0.004, bound="launch"))


def test_a_launch_bound_precision_has_the_command_that_measures_what_cuda_graphs_gain() -> None:
    (hint,) = hints(bench(measured(amp(1.5), timings=LAUNCH_BOUND)))
    assert hint == (
        "AMP fp16 is launch-bound: `amptui bench mnist-deep --compile reduce-overhead` measures what CUDA "
        "graphs gain"
    )
    assert hints(bench(measured(amp(1.5), timings=LAUNCH_BOUND[:1]))) == []


def test_so_has_a_gpu_that_is_idle_for_lack_of_launches() -> None:
    stats = [PrecisionStats(precision=name, **NO_STATS) for name in ("fp32", "fp16")]
    comparison = Comparison(rows=tuple(stats), baseline="fp32", low="fp16", held_back_by="launch")
    (hint,) = hints(bench(measured(amp(1.01), comparison=comparison)))
    assert hint.startswith("FP32 and AMP fp16 are launch-bound: `amptui bench mnist-deep --compile reduce-")


NO_STATS: dict[str, Any] = {
    "steps": 240,
    "warm_up_steps": 9,
    "median_step_seconds": 0.02,
    "samples_per_second": 9.0,
    "peak_allocated_bytes": None,
    "last_loss": 0.1,
    "skipped": 0,
    "utilization_percent": 40.0,
}


def test_the_command_has_the_options_of_this_benchmark() -> None:
    request = BenchRequest(
        training=TrainRequest(
            model="my models/a.py",
            learning_rate=0.1,
            clip_norm=1.0,
            seed=3,
            device="cuda:1",
            data="synthetic",
            data_dir=Path("/data"),
            workers=0,
            settings={"width": "64", "note": "a b"},
            channels_last=True,
            cudnn_benchmark=True,
        ),
        precisions=("fp32", "bf16"),
        batch_sizes=(32, 64),
        rounds=4,
        run_dir=Path("runs/x"),
    )
    command = bench_command(request, "reduce-overhead")
    options = build_parser().parse_args(shlex.split(command)[1:])
    assert options.model == "my models/a.py"
    assert (options.precisions, options.batch_size, options.rounds) == (("fp32", "bf16"), (32, 64), 4)
    assert (options.lr, options.clip_norm, options.seed, options.device) == (0.1, 1.0, 3, "cuda:1")
    assert (options.data, options.data_dir, options.workers) == ("synthetic", Path("/data"), 0)
    assert options.set == ["width=64", "note=a b"]
    assert (options.channels_last, options.cudnn_benchmark) == (True, True)
    assert (options.compile, options.run_dir) == ("reduce-overhead", None)
    plain = BenchRequest(training=TrainRequest(model="x", data_dir=default_data_dir()))
    assert bench_command(plain, "default") == "amptui bench x --compile default"


EAGER_BOUND = (
    timing("fp32 eager", 0.005, bound="launch"),
    timing("fp16 eager", 0.005, bound="launch"),
    timing("fp16", 0.004, bound="compute"),
)


def test_where_it_was_measured_the_launch_bound_verdict_names_the_option_and_its_gain() -> None:
    option = "with --compile reduce-overhead"
    assert hints(both_ways(timings=EAGER_BOUND)) == [
        f"FP32 eager is launch-bound: {option} {times_speed(1.8, 'FP32 eager')} (1.75 to 1.85)",
        f"AMP fp16 eager is launch-bound: {option} {times_speed(2.35, 'AMP fp16 eager')} (2.30 to 2.40)",
    ]
    none, _ = hints(both_ways(gain=1.0, timings=EAGER_BOUND))
    assert none == f"FP32 eager is launch-bound: {option} {times_speed(1.0, 'FP32 eager')} (0.95 to 1.05)"


def test_compiling_without_cuda_graphs_leaves_them_to_be_measured() -> None:
    bound = (EAGER_BOUND[0], timing("fp16", 0.004, bound="launch"))
    gain, command = hints(both_ways("default", timings=bound))
    assert "with --compile default 1.80× the speed" in gain
    assert command == (
        "FP32 eager and AMP fp16 compiled are launch-bound: `amptui bench mine.py --compile reduce-overhead` "
        "measures what CUDA graphs gain"
    )


def test_why_amp_gained_little_is_told_of_the_eager_steps() -> None:
    (size,) = both_ways(timings=EAGER_BOUND).sizes
    assert size.reasons[:2] == [
        f"{label} eager is launch-bound: {evidence(bound)}"
        for label, bound in zip(("FP32", "AMP fp16"), EAGER_BOUND[:2], strict=True)
    ]
