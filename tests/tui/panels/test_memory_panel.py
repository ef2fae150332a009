from dataclasses import replace

from amptui.records.samples import GpuSample, HostSample
from amptui.telemetry.view import SessionView
from amptui.tui.panels import memory_panel
from amptui.tui.panels.phrases import Word
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import Style
from tests.tui import views
from tests.tui.panels.drawing import draw_alone, style_of


def lines(view: SessionView, width: int = 60, height: int = 10) -> list[str]:
    return [line.rstrip() for line in draw_alone(memory_panel.draw, view, width, height).lines()]


def test_a_gpu_has_a_bar_and_its_readings() -> None:
    first, second, *_ = lines(views.compared())
    assert first.startswith("▸GPU0 ▰")
    assert first.endswith("3.10 / 139 GiB")
    assert second.split() == ["93%", "busy", "412", "W", "54", "°C", "1,980", "MHz"]


def test_torch_says_what_it_holds() -> None:
    text = " ".join(" ".join(lines(views.compared())).split())
    assert "torch 1.20 GiB allocated 1.90 GiB peak 2.40 GiB reserved" in text


def test_what_nvml_does_not_say_is_not_a_number() -> None:
    view = replace(views.compared(), device=views.device(GpuSample(uuid=views.TRAINING_UUID)), allocator=None)
    first, second, *_ = lines(view)
    assert first.split()[0] == "▸GPU0"
    assert first.endswith("n/a")
    assert second.split() == ["n/a", "busy", "n/a", "W", "n/a", "°C", "n/a", "MHz"]
    assert "▰" not in first


def test_the_gpu_that_trains_comes_first_under_its_own_number() -> None:
    order = [(name, trains) for name, _, trains in memory_panel.ordered_gpus(views.two_gpus())]
    assert order == [("GPU1", True), ("GPU0", False)]


def test_a_mig_instance_that_trains_is_known_by_its_uuid_and_moves_no_index() -> None:
    instance, second = views.gpu(uuid="MIG-aaaa"), views.gpu(uuid="GPU-cccc")
    view = replace(views.compared(), device=views.device(views.gpu(uuid="GPU-bbbb"), instance, second))
    assert views.TRAINING_UUID == "GPU-aaaa"
    assert view.training_gpu is instance
    order = [(name, trains) for name, _, trains in memory_panel.ordered_gpus(view)]
    assert order == [("MIG0", True), ("GPU0", False), ("GPU1", False)]


def test_a_run_on_a_cpu_marks_no_gpu() -> None:
    view = replace(views.compared(), run=views.run_started(gpu_uuid=None))
    assert lines(view)[0].startswith(" GPU0")


def test_a_held_clock_has_the_ink_of_a_warning() -> None:
    canvas = draw_alone(memory_panel.draw, views.two_gpus(), 34, 6)
    assert style_of(canvas, "⚠ throttled") == Style.WARNING


def test_many_gpus_give_up_their_readings_but_not_their_bars() -> None:
    gpus = [views.gpu(index) for index in range(8)]
    view = replace(views.compared(), device=views.device(*gpus))
    text = lines(view, 60, 12)
    assert sum("GPU" in line for line in text) == 8
    assert sum("busy" in line for line in text) == 1
    assert sum("busy" in line for line in lines(view, 60, 30)) == 8


def test_without_a_gpu_the_note_and_the_host_are_shown() -> None:
    text = lines(views.no_nvml())
    assert text[0] == views.NO_NVML
    assert text[1].startswith("host ▰")
    assert text[1].endswith("12.0 / 31.0 GiB")
    assert text[2].split() == ["process", "1.20", "GiB", "34%", "CPU"]


def test_of_several_ranks_the_process_is_rank_0_s() -> None:
    view = views.no_nvml()
    assert view.run is not None
    several = replace(view, run=replace(view.run, world_size=4))
    assert lines(several)[2].split() == ["rank", "0", "1.20", "GiB", "34%", "CPU"]


def test_an_unknown_host_is_not_a_number() -> None:
    device = replace(views.device(note="no NVIDIA GPU"), host=HostSample())
    _, host, process, *_ = lines(replace(views.no_nvml(), device=device))
    assert host.endswith("n/a")
    assert process.split() == ["process", "n/a", "n/a", "CPU"]


def test_a_nearly_full_gpu_is_a_warning() -> None:
    full = views.gpu(memory_used_bytes=138 * views.GIB)
    canvas = draw_alone(memory_panel.draw, replace(views.compared(), device=views.device(full)), 60, 4)
    assert style_of(canvas, "▰") == Style.WARNING
    assert style_of(draw_alone(memory_panel.draw, views.compared(), 60, 4), "▰") == Style.GOOD


def test_old_figures_say_so_while_the_run_goes_on() -> None:
    late = ScreenState(now=views.NOW + 12)
    assert memory_panel.headline(views.compared(), late)[0].words == (Word("sample 0:12 old", Style.WARNING),)
    assert memory_panel.headline(views.compared(), ScreenState(now=views.NOW)) == []
    assert memory_panel.headline(views.finished(), late) == []
