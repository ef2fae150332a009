"""What each panel draws, in the sizes and situations in which its lines differ."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, get_args

from amptui.records.answers import REQUEST_KINDS
from amptui.records.control import PauseRequest, PrecisionRequest, Request, StopRequest, record_of
from amptui.records.keeping import KeepingChanged
from amptui.records.run import PhaseChanged, RunFinished, Validated, Validation
from amptui.records.samples import GpuSample, HostSample
from amptui.telemetry.events import Event, EventKind
from amptui.telemetry.flops import flops_now
from amptui.telemetry.view import Comparison, OptimizerView, SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.keys import FOOTER_HINTS
from amptui.tui.panels import (
    answer_panel,
    event_list,
    footer,
    header,
    loss,
    memory_panel,
    memory_table,
    numerics_panel,
    optimizer_line,
    precision_table,
    rank_table,
    scale,
    throughput,
)
from amptui.tui.panels.phrases import Line, write
from amptui.tui.panels.screen_state import ScreenState
from tests.diagnosis import amp_situations
from tests.telemetry import record_samples
from tests.telemetry.record_samples import faster, measured
from tests.tui import numerics_views, rank_views, special_views, timing_views, view_parts, views
from tests.tui.panels.drawing import SCREEN, Draw
from tests.tui.special_views import BEGUN, MEMORY
from tests.tui.special_views import with_memory as by_kind

NOT_KEPT = KeepingChanged(time=views.NOW, what="journal", trouble="the disk is full", unsaved=3)
WITH_KEYS = replace(SCREEN, accepts=REQUEST_KINDS)


class Drawing(NamedTuple):
    """One picture of a panel."""

    title: str
    draw: Draw
    view: SessionView
    width: int
    height: int
    screen: ScreenState = SCREEN

    def drawn(self) -> Canvas:
        canvas = Canvas(self.width, self.height)
        self.draw(canvas, self.view, self.screen)
        return canvas


def _in(
    sizes: str, title: str, draw: Draw, view: SessionView, screen: ScreenState = SCREEN
) -> Iterator[Drawing]:
    """A view in several sizes: "34x6 40x7"."""
    for size in sizes.split():
        width, height = map(int, size.split("x"))
        yield Drawing(title, draw, view, width, height, screen)


def _lines(width: int, title: str, rows: Iterator[tuple[Draw, SessionView, ScreenState]]) -> Drawing:
    """Panels of one line each, one below the other."""
    drawn = list(rows)

    def draw_all(canvas: Canvas, _view: SessionView, _screen: ScreenState) -> None:
        for y, (draw, view, screen) in enumerate(drawn):
            draw(canvas.rows(y, 1), view, screen)

    return Drawing(title, draw_all, SessionView(), width, len(drawn))


def _as_draw(line: Callable[[SessionView, ScreenState], Line]) -> Draw:
    """A headline as a panel of one line."""

    def draw(canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
        write(canvas, 0, 0, line(view, screen))

    return draw


# ------------------------------------------------------------------------------------- the header


def with_requests(*requests: Request) -> SessionView:
    pending = tuple(record_of(request, number) for number, request in enumerate(requests))
    return replace(views.compared(), pending=pending)


def _headers() -> Iterator[tuple[SessionView, ScreenState]]:
    compared, finished = views.compared(), views.finished()
    saving = PhaseChanged(time=views.NOW, phase="stopping", detail="writing the checkpoint")
    stopped = RunFinished(time=views.NOW, steps=1204, seconds=41.0, reason="stopped")
    endless = views.run_started(steps_per_epoch=None, total_steps=None)
    shown = (
        *(build() for build in views.ALL.values()),
        with_requests(PrecisionRequest("fp32")),
        with_requests(PrecisionRequest("fp32"), PrecisionRequest("tf32")),
        with_requests(PrecisionRequest("fp16")),
        with_requests(PauseRequest(True)),
        with_requests(PauseRequest(True), PauseRequest(False)),
        replace(with_requests(PauseRequest(False)), state="paused"),
        with_requests(StopRequest("SIGTERM"), PauseRequest(True)),
        replace(compared, run=endless, eta_seconds=None),
        replace(views.paused(), pause_reason="the loss scale collapsed"),
        replace(compared, phase=saving),
        replace(finished, phase=saving),
        replace(finished, outcome=stopped),
        replace(compared, not_kept=(NOT_KEPT,)),
        replace(compared, viewers=2),
        replace(compared, viewers=1),
        replace(compared, run=views.run_started(model="a" * 60)),
        replace(views.synthetic(), warnings=1),
    )
    yield from ((view, SCREEN) for view in shown)
    lost = replace(SCREEN, lost="it was killed")
    yield from ((build(), lost) for build in (views.starting, views.compared, views.paused))
    yield with_requests(PrecisionRequest("fp32")), lost
    yield from ((view, replace(SCREEN, stopping=True)) for view in (compared, finished))


def _header() -> Iterator[Drawing]:
    for width in (40, 60, 80, 100, 120, 140, 160):
        yield _lines(width, "each state", ((header.draw, view, screen) for view, screen in _headers()))


# ---------------------------------------------------------------------- the line on AMP and folded panels


def _answer() -> Iterator[Drawing]:
    """The line below the header: the speed is told in fewer words before it is left out."""
    for width in (44, 60, 80, 120):
        situations = (
            (answer_panel.draw_line, amp_situations.view_of(name), WITH_KEYS)
            for name in amp_situations.SITUATIONS
        )
        yield _lines(width, "each situation", situations)


def _folded() -> Iterator[Drawing]:
    half = replace(views.compared().comparison, speedup=None, missing="steps")
    shown: tuple[tuple[Draw, tuple[SessionView, ...]], ...] = (
        (loss.draw_line, (views.starting(), views.compared(), views.nan_losses())),
        (throughput.draw_line, (views.starting(), views.compared())),
        (
            scale.draw_line,
            (
                *(views.fp32_only(), views.with_skips(), views.back_in_fp32()),
                *(numerics_views.collapsing(), numerics_views.healthy()),
            ),
        ),
        (memory_panel.draw_line, (views.starting(), views.compared(), views.two_gpus(), views.no_nvml())),
        (
            precision_table.draw_line,
            (
                *(views.starting(), views.fp32_only(), views.first_impression(), views.compared()),
                replace(views.compared(), comparison=half),
                *(special_views.in_turns(), special_views.in_turns(0, special_views.BEGUN)),
                special_views.over(),
            ),
        ),
        (
            rank_table.draw_line,
            tuple(rank_views.ALL[name]() for name in ("8 ranks, slow data", "8 ranks in trouble", "2 ranks")),
        ),
        (rank_table.draw_line, (rank_views.unsampled(), rank_views.ALL["8 ranks, one awaited"]())),
    )
    for width in (40, 60, 80, 120):
        rows = ((draw, view, WITH_KEYS) for draw, some in shown for view in some)
        yield _lines(width, "each panel", rows)


# ------------------------------------------------------------------------------------- the curves


def counted(**changes: object) -> SessionView:
    """A run whose FLOPs are known."""
    result = flops_now(record_samples.flops("fp16", flops=10**12, **changes), 0.0025, record_samples.run())
    return replace(views.compared(), precision="fp16", flops=(result,))


def _loss() -> Iterator[Drawing]:
    compared = views.compared()
    assert compared.last is not None
    assert compared.validated is not None
    own = Validation(loss=0.5, accuracy=None, samples=1, metrics={"f1": 0.25, "bits": 1.5})
    groups = replace(
        compared,
        last=replace(compared.last, lr=0.5, group_lrs=(0.5, 0.125)),
        validated=Validated(time=1.0, step=7, epoch=1, validation=own),
    )
    headlines = (SessionView(), compared, groups, views.nan_losses(), special_views.gan_view())
    yield _lines(100, "headlines", ((_as_draw(loss.headline), view, SCREEN) for view in headlines))
    first_step = PhaseChanged(time=1.0, phase="first step", detail="loading kernels")
    for view in (
        *(views.downloading(), replace(views.starting(), phase=first_step)),
        replace(SessionView(), state="failed"),
        *(views.with_skips(), views.nan_losses()),
    ):
        yield Drawing("alone", loss.LossPanel().draw, view, 60, 12)
    pinned = replace(SCREEN, pinned=(("validation", "accuracy"), ("part", "never logged"), ("step", "lr")))
    yield from _in("78x21 78x10 73x21 78x7", "pinned", loss.LossPanel().draw, views.logged(), pinned)
    yield Drawing("zoomed", loss.LossPanel().draw, compared, 78, 12, replace(SCREEN, zoom=2, log_y=True))


def _throughput() -> Iterator[Drawing]:
    shown = (
        *(SessionView(), views.compared(), counted(), counted(uncounted=("mine",))),
        replace(counted(), precision="fp32"),
    )
    yield _lines(80, "headlines", ((_as_draw(throughput.headline), view, SCREEN) for view in shown))
    run = record_samples.run()
    odd = record_samples.flops("fp16", flops=10**12, unaligned_flops=10**12)
    odd = replace(odd, unaligned=(record_samples.product("head"),))
    flops = (flops_now(record_samples.flops(flops=10**12), 0.02, run), flops_now(odd, 0.0025, run))
    achieved = replace(timing_views.compute_bound(), flops=flops)
    focused = replace(SCREEN, focus="throughput")
    for name, build in timing_views.ALL.items():
        yield from _in("76x20", name, throughput.ThroughputPanel().draw, build(), focused)
    every = timing_views.every_precision()
    yield from _in("76x16 116x36", "every precision", throughput.ThroughputPanel().draw, every, focused)
    yield from _in("116x36", "achieved", throughput.ThroughputPanel().draw, achieved, focused)
    launch = timing_views.launch_bound()
    yield from _in("116x36", "launch-bound", throughput.ThroughputPanel().draw, launch, focused)
    yield from _in("76x20", "not timed", throughput.ThroughputPanel().draw, views.compared(), focused)
    yield from _in("60x8", "beside others", throughput.ThroughputPanel().draw, timing_views.compute_bound())


def _scale() -> Iterator[Drawing]:
    skips = views.with_skips()
    tiny = replace(skips, scaler=replace(skips.scaler, scale=0.5))
    headlines = (
        *(views.fp32_only(), skips, views.back_in_fp32(), tiny),
        *(numerics_views.healthy(), numerics_views.in_fp32(), numerics_views.collapsing()),
    )
    yield _lines(60, "headlines", ((_as_draw(scale.headline), view, SCREEN) for view in headlines))
    sizes = "26x6 34x6 40x7 46x8"
    for name, view in {
        "skips": skips,
        "never used": views.fp32_only(),
        "kept": views.back_in_fp32(),
        "collapsing": numerics_views.collapsing(),
        "healthy": numerics_views.healthy(),
        "forward overflow": numerics_views.forward_overflow(),
    }.items():
        yield from _in(sizes, name, scale.ScalePanel().draw, view)


# -------------------------------------------------------------------------------- the precisions compared


def _stats(*precisions: str, **changes: Any) -> SessionView:
    rows = tuple(replace(views.compared().comparison.rows[0], precision=name) for name in precisions)
    comparison = Comparison(rows=rows, **{"baseline": "fp32", "low": "fp16", **changes})
    return replace(views.compared(), comparison=comparison)


def _tally(**changes: object) -> SessionView:
    view = views.compared()
    return replace(view, comparison=replace(view.comparison, **changes))  # type: ignore[arg-type]  # its fields


def _comparison() -> Iterator[Drawing]:
    draw, compared = precision_table.draw, views.compared()
    speeds = (1.94, 0.5, 1.03, 0.97, 1.004, 0.998, None)
    savings = (0.38, -0.12, 0.001, None)
    for speed, saving in zip(speeds, (*savings, *savings), strict=False):
        yield Drawing(f"{speed} and {saving}", draw, _tally(speedup=speed, memory_saving=saving), 34, 10)
    few = tuple(replace(row, steps=12) for row in compared.comparison.rows)
    fp32, amp = compared.comparison.rows
    emulated = _stats("bf16", "fp8-emulated", low="fp8-emulated", baseline="bf16", missing="emulated")
    first = views.first_impression().comparison.rows[0]
    alone = Comparison(rows=(replace(first, provisional_steps=1),), baseline="fp32")
    for title, sizes, view in (
        ("two", "30x6 30x11 34x16 42x26", compared),
        ("one", "30x10 42x20", views.fp32_only()),
        ("none", "30x9", views.starting()),
        ("without peaks", "30x10", views.no_nvml()),
        ("first impression", "30x12 34x16 42x26", views.first_impression()),
        ("one warm-up step", "30x12", replace(compared, comparison=alone)),
        ("explained", "34x10 34x12 34x13 34x17 34x22", views.explained()),
        ("not measured", "30x14", replace(compared, unmeasured_steps=12)),
        ("too few", "30x12", _tally(speedup=None, memory_saving=None, missing="more steps", rows=few)),
        ("energy", "30x12", _tally(rows=(fp32, replace(amp, joules_per_1000_samples=1234.0)))),
        ("memory that is a guess", "60x24", _tally(memory_saving=0.01)),
        ("four", "80x12", _stats("bf16", "fp16", "fp32", "tf32")),
        ("five", "30x12 80x12", _stats("fp32", "ieee", "tf32", "fp16", "bf16")),
        ("emulated", "30x20 80x40", emulated),
    ):
        yield from _in(sizes, title, draw, view, WITH_KEYS)
    yield from _in("34x16 60x24", "of a replay", draw, _tally(memory_saving=0.01))
    yield from _tests()


def _tests() -> Iterator[Drawing]:
    """Comparisons in turns."""
    bf16 = replace(faster(), precision="bf16")
    three = (measured("fp32"), faster(), bf16)
    for title, sizes, view in (
        ("A/B test", "34x3 34x8 34x22 60x22 118x22", special_views.in_turns()),
        ("A/B test, begun", "34x22", special_views.in_turns(0, BEGUN)),
        ("A/B test of three", "34x30", special_views.in_turns(rows=three)),
        ("A/B test, over", "34x22 34x24", special_views.over()),
        ("A/B test, over, another pair", "34x30", special_views.over(rows=(measured("fp32"), bf16))),
        ("A/B test, stopped at once", "34x22", special_views.over(rows=BEGUN, reason="stopped")),
    ):
        yield from _in(sizes, title, precision_table.draw, view, WITH_KEYS)
    three_headers = (special_views.in_turns(), special_views.in_turns(rows=three))
    yield _lines(120, "headers", ((header.draw, view, SCREEN) for view in three_headers))


# --------------------------------------------------------------------------------------- the memory


def _memory() -> Iterator[Drawing]:
    draw, compared = memory_panel.draw, views.compared()
    instance, second = views.gpu(uuid="MIG-aaaa"), views.gpu(uuid="GPU-cccc")
    without_run_host = replace(views.device(note="no NVIDIA GPU"), host=HostSample())

    def of(*gpus: GpuSample) -> SessionView:
        return replace(compared, device=views.device(*gpus))

    cpu = views.no_nvml()
    assert cpu.run is not None
    for title, sizes, view in (
        ("one GPU", "34x6 60x10", compared),
        ("two GPUs, held down", "34x6 60x10", views.two_gpus()),
        ("nothing sampled", "60x4", replace(of(GpuSample(uuid=views.TRAINING_UUID)), allocator=None)),
        ("on a CPU beside a GPU", "60x4", replace(compared, run=views.run_started(gpu_uuid=None))),
        ("a MIG instance", "60x10", of(views.gpu(uuid="GPU-bbbb"), instance, second)),
        ("eight GPUs", "60x12 60x30", of(*map(views.gpu, range(8)))),
        ("nearly full", "60x4", of(views.gpu(memory_used_bytes=138 * views.GIB))),
        ("no GPU", "60x6", cpu),
        ("of four ranks", "60x6", replace(cpu, run=replace(cpu.run, world_size=4))),
        ("no figures of the host", "60x6", replace(cpu, device=without_run_host)),
        ("by kind", "34x6 60x8 76x20", by_kind(*MEMORY[:2])),
        ("by kind, without samples", "34x6 76x20", replace(by_kind(*MEMORY), device=None)),
    ):
        yield from _in(sizes, title, draw, view)
    late = replace(SCREEN, now=views.NOW + 12)
    samples = ((_as_draw(memory_panel.headline), view, late) for view in (compared, views.finished()))
    yield _lines(60, "headlines of old samples", samples)


def _memory_by_kind() -> Iterator[Drawing]:
    fp32, fp16, bf16 = MEMORY
    two = by_kind(fp32, fp16)
    xray = record_samples.xray(saved_bytes_fp32=236 * 2**20, saved_bytes_amp=121 * 2**20)
    unmeasured = by_kind(*special_views.WITHOUT_PEAKS, before=views.no_nvml())
    for title, sizes, view in (
        ("two precisions", "37x20 44x12 50x14 76x9 76x14 76x20 110x30", two),
        ("one precision", "76x20", by_kind(fp32)),
        ("three precisions", "76x20 110x30", by_kind(fp32, fp16, bf16)),
        ("without peaks", "76x20", unmeasured),
        ("with an X-ray", "76x20", replace(two, numerics=replace(two.numerics, xray=xray))),
    ):
        screen = replace(SCREEN, accepts=view.accepts)
        yield from _in(sizes, title, memory_table.draw, view, screen)


# -------------------------------------------------------------------------------- float16 and its scaler


def with_window(view: SessionView, **changes: object) -> SessionView:
    window = replace(view.numerics.window, **changes)  # type: ignore[type-var]  # its fields
    return replace(view, numerics=replace(view.numerics, window=window))


def _numerics() -> Iterator[Drawing]:
    healthy = numerics_views.healthy()
    shown = (*(build() for build in numerics_views.ALL.values()), views.starting())
    yield _lines(60, "headlines", ((_as_draw(numerics_panel.headline), view, SCREEN) for view in shown))
    draw = numerics_panel.NumericsPanel().draw
    for name, build in numerics_views.ALL.items():
        yield from _in("36x8 76x20 116x36", name, draw, build())
    yield from _in("76x46 106x14 196x56", "healthy", draw, healthy)
    yield from _in("76x12", "collapsing", draw, numerics_views.collapsing())
    nothing = replace(healthy, numerics=numerics_views.numerics(views.starting()).numerics)
    for title, sizes, view in (
        ("starting", "76x20", views.starting()),
        ("nothing yet", "76x20", views.compared()),
        ("at another scale", "76x20 116x36", with_window(healthy, loss_scale=1024.0)),
        ("its cost", "100x24", with_window(healthy, steps_since=None, seconds=0.0031)),
        ("of unknown cost", "100x24", with_window(healthy, steps_since=None, seconds=None)),
        ("underflow", "76x20", with_window(healthy, subnormal_squares=1.0, squares=2.0)),
        ("no history", "116x36", nothing),
    ):
        yield from _in(sizes, title, draw, view)


# ------------------------------------------------------------------------------- ranks, events, the footer


def _ranks() -> Iterator[Drawing]:
    for name, build in rank_views.ALL.items():
        yield from _in("76x20 116x10 196x11", name, rank_table.draw, build())
    view = rank_views.view(8)
    assert view.run is not None
    tensor_parallel = replace(view, run=replace(view.run, data_parallel=4))
    headlines = (view, tensor_parallel, rank_views.unsampled(), views.compared())
    yield _lines(100, "headlines", ((_as_draw(rank_table.headline), one, SCREEN) for one in headlines))


def _events() -> Iterator[Drawing]:
    yield from _in("60x6 100x6", "skips", event_list.draw, views.with_skips())
    yield from _in("60x3", "switches", event_list.draw, views.compared())
    yield from _in("60x3", "none", event_list.draw, views.starting())
    kinds = [
        Event(views.NOW, 7, kind, severity, view_parts.note("text"))
        for kind in get_args(EventKind)
        if kind != "switch"
        for severity in ("info", "warning", "error")
    ]
    each = replace(views.compared(), events=tuple(kinds))
    yield from _in(f"40x{len(kinds)}", "each kind", event_list.draw, each)
    yield _lines(60, "headline", iter([(_as_draw(event_list.headline), views.nan_losses(), SCREEN)]))


def _footer() -> Iterator[Drawing]:
    cost = ScreenState(hints=FOOTER_HINTS, frames_per_second=4.0, frame_cpu_percent=0.62)
    several = "once training runs: switch, comparison, X-ray, trace, histogram, checkpoint"
    states = (
        *(cost, replace(cost, frames_per_second=None, frame_cpu_percent=None)),
        replace(cost, lost="the training process exited unexpectedly: see `amptui runs`", waiting="X-ray …"),
        replace(cost, waiting="checkpoint after this step …"),
        replace(cost, waiting=several),
        replace(cost, message="checkpoint saved"),
        replace(cost, silence="no response from the run for 10 s"),
    )
    for width in (12, 22, 40, 60, 80, 120, 160):
        yield _lines(width, "each state", ((footer.draw, views.compared(), state) for state in states))
    for framed in (True, False):
        for severity, message in (
            *(("info", "checkpoint saved"), ("warning", "no X-ray: " + "word " * 20), ("error", "lost")),
        ):
            screen = ScreenState(message=message, severity=severity)  # type: ignore[arg-type]  # one of three
            draw = partial(_draw_notice, framed=framed)
            yield Drawing(f"a notice, {framed=}", draw, SessionView(), 40, footer.NOTICE_LINES, screen)


def _draw_notice(canvas: Canvas, _view: SessionView, screen: ScreenState, *, framed: bool) -> None:
    for y in range(canvas.height):
        canvas.text(0, y, "│" + "x" * 38 + "│" if framed else "x" * 40)
    footer.draw_notice(canvas, screen, framed=framed)


def _optimizers() -> Iterator[Drawing]:
    view = special_views.gan_view()
    front = OptimizerView(name="", label="a", is_front=True)
    critics = [OptimizerView(name=str(n), label=f"critic {n}", loss=0.5) for n in range(6)]
    no_loss = OptimizerView(name="b", label="b", loss_form="no backward")
    skipping = tuple(replace(optimizer, skipped=3) for optimizer in view.optimizers)
    shown = (
        *(view, special_views.gan_view(front=special_views.DISCRIMINATOR)),
        replace(view, optimizers=(front, *critics)),
        replace(view, optimizers=skipping),
        replace(view, optimizers=(front, no_loss), optimizers_left_out=True),
    )
    for width in (34, 40, 60, 80, 120, 160):
        yield _lines(width, "each", ((optimizer_line.draw, one, SCREEN) for one in shown))


DRAWINGS: Mapping[str, Callable[[], Iterator[Drawing]]] = {
    "header": _header,
    "answer line": _answer,
    "folded": _folded,
    "loss": _loss,
    "throughput": _throughput,
    "scale": _scale,
    "comparison": _comparison,
    "memory": _memory,
    "memory by kind": _memory_by_kind,
    "numerics": _numerics,
    "ranks": _ranks,
    "events": _events,
    "footer": _footer,
    "optimizers": _optimizers,
}
"""The pictures of each panel."""
