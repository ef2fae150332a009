"""The panel of the ranks: rows of few, an overview of many, and what is wrong with any."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from amptui.diagnosis.rank_words import rank_lost, size_words, speed_sentence
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels import rank_table
from amptui.tui.panels.phrases import fitting, line_width
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import BOLD, Style
from tests.tui import rank_views, views
from tests.tui.panels.drawing import SCREEN, draw_alone, style_of

SIZES = {"80x24": (76, 20), "120x40": (116, 10), "200x60": (196, 11)}
"""Of the panel within a screen of that size; at 80x24 enlarged."""


def rows_of(canvas: Canvas) -> list[int]:
    """The ranks that have a row, from the top."""
    matches = [
        re.match(r"[⚠✖ ] +(\d+)  (?:node-\d+ )?cuda:", line.split("  ⚠ ")[-1]) for line in canvas.lines()
    ]
    return [int(match[1]) for match in matches if match]


def strips_of(canvas: Canvas) -> dict[str, str]:
    matches = [re.match(r"(compute|data wait|clock|GPU memory) +([▁-█]+)", line) for line in canvas.lines()]
    return {match[1]: match[2] for match in matches if match}


def drawn(view: SessionView, size: tuple[int, int]) -> Canvas:
    return draw_alone(rank_table.draw, view, *size)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("world_size", [2, 8])
def test_few_ranks_have_a_row_each(world_size: int, size: tuple[int, int]) -> None:
    canvas = drawn(rank_views.view(world_size, "input"), size)
    assert rows_of(canvas) == list(range(world_size))
    assert not strips_of(canvas)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_many_ranks_have_strips_and_rows_of_the_slowest(size: tuple[int, int]) -> None:
    canvas = drawn(rank_views.view(64, "compute"), size)
    strips = strips_of(canvas)
    assert set(strips) == {"compute", "data wait", "clock", "GPU memory"}
    assert len(strips["compute"]) == (64 if size[0] > 100 else 32)
    tallest = strips["compute"].index(max(strips["compute"]))
    assert tallest == (42 if size[0] > 100 else 42 // 2)
    assert "42" in "".join(line for line in canvas.lines() if "⚠   42" in line)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_a_thousand_ranks_have_percentiles_and_rows_of_the_slowest(size: tuple[int, int]) -> None:
    canvas = drawn(rank_views.view(1024, "compute"), size)
    assert not strips_of(canvas)
    assert len([line for line in canvas.lines() if "━┼━" in line]) >= 1
    assert any("⚠  682" in line for line in canvas.lines())


def test_the_row_of_a_slow_rank_marks_the_number_that_shows_it() -> None:
    canvas = drawn(rank_views.view(8, "input"), SIZES["120x40"])
    y, line = next((y, line) for y, line in enumerate(canvas.lines()) if line.startswith("⚠    5"))
    ranks = rank_views.view(8, "input").ranks
    assert ranks is not None
    data_wait = f"{1000 * (ranks.rows[5].data_seconds or 0):.2f} ms"
    assert canvas.styles[y, line.index(data_wait)] == Style.WARNING | BOLD
    compute = f"{1000 * (ranks.rows[5].compute_seconds or 0):.2f} ms"
    assert canvas.styles[y, line.index(compute)] == Style.TEXT


def test_a_bar_is_as_long_as_its_part_of_the_step() -> None:
    view = rank_views.view(8, "input")
    assert view.ranks is not None
    canvas = drawn(view, SIZES["120x40"])
    line = next(line for line in canvas.lines() if line.startswith("⚠    5"))
    row = view.ranks.rows[5]
    waits, computes, rest = (line.count(sign) for sign in "░▆·")
    whole = waits + computes + rest
    assert row.data_seconds is not None
    assert row.step_seconds is not None
    assert waits == pytest.approx(whole * row.data_seconds / row.step_seconds, abs=1)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("world_size", [8, 64])
def test_what_fills_a_bar_is_named_above_it(world_size: int, size: tuple[int, int]) -> None:
    lines = drawn(rank_views.view(world_size, "compute"), size).lines()
    assert any("▆▆" in line for line in lines)
    assert any("░ data" in line and "▆ compute" in line for line in lines)
    assert not any("· wait" in line for line in lines)  # the optimizer's time is in it, too


def test_what_is_wrong_comes_first() -> None:
    view = rank_views.ALL["8 ranks in trouble"]()
    canvas = drawn(view, (116, 14))
    lines = canvas.lines()
    assert view.ranks is not None
    (lost,) = view.ranks.lost
    assert lines[0].startswith(f"✖ {rank_lost(lost)}")
    assert lines[1].startswith("✖ replicas disagree: rank 3 has loss scale 32,768, the others 65,536")
    assert lines[2].rstrip() == f"⚠ {speed_sentence(view.ranks, view.run)}"
    assert "rank 5 " in lines[2]
    assert canvas.styles[0, 0] == Style.ERROR | BOLD
    assert next(line for line in lines if re.match(r"✖ +6", line))


def test_alarms_make_the_panel_higher() -> None:
    calm, alarmed = rank_views.view(8, "compute"), rank_views.ALL["8 ranks in trouble"]()
    assert rank_table.wanted_height(alarmed) == rank_table.wanted_height(calm) + 2
    assert rank_table.wanted_height(views.compared()) == 0


def test_a_long_sentence_does_not_cost_the_rows() -> None:
    view = rank_views.view(8, "clocks")
    assert len(rows_of(drawn(view, (90, 10)))) == 8
    assert len(rows_of(drawn(view, (90, 11)))) == 8


@pytest.mark.parametrize("make", rank_views.ALL.values(), ids=rank_views.ALL)
def test_a_panel_without_room_is_drawn_too(make: Callable[[], SessionView]) -> None:
    for width in (1, 11, 30):
        assert drawn(make(), (width, 5)).lines()


def test_without_samples_the_panel_says_so() -> None:
    assert rank_table.NO_SAMPLE in "".join(drawn(rank_views.unsampled(), (76, 8)).lines())
    assert rank_table.NO_SAMPLE in "".join(drawn(views.compared(), (76, 8)).lines())


def test_numbers_that_no_rank_measured_have_no_column() -> None:
    text = "\n".join(drawn(rank_views.view(8, "", fsdp=True), (196, 10)).lines())
    assert "compute" not in text.split("\n")[1]
    assert "data wait" in text


@pytest.mark.parametrize(
    ("view", "text"),
    [
        (
            rank_views.view(8, "input"),
            r"rank 5 \(node-1 cuda:5\) is slow: it waits 3\.\d\d ms for data, the other ranks 0\.\d+ ms",
        ),
        (
            rank_views.view(8, "compute"),
            r"rank 5 .* is slow: forward and backward take 12\.\d ms, 9\.\d\d ms on the other ranks",
        ),
        (
            rank_views.view(8, "clocks"),
            r"rank 5 .* is slow: clock held at 1,4\d\d of 1,9\d\d MHz by thermal \(hw\); compute .*",
        ),
        (rank_views.view(8), "no rank is slower than the others"),
        (
            rank_views.view(8, "", fsdp=True),
            "data wait and clocks are the same on all ranks; FSDP2 hides which rank computes slowly",
        ),
        (rank_views.unsampled(), ""),
    ],
    ids=["input", "compute", "clocks", "equal", "FSDP2", "unsampled"],
)
def test_the_sentence_says_what_the_numbers_allow(view: SessionView, text: str) -> None:
    assert view.ranks is not None
    assert re.fullmatch(text, speed_sentence(view.ranks, view.run))


@pytest.mark.parametrize("data_parallel", [8, 4])
def test_the_headline_has_the_throughput_together_and_each(data_parallel: int) -> None:
    """Ranks of a tensor-parallel group take the same samples."""
    view = rank_views.view(8)
    assert view.run is not None
    view = replace(view, run=replace(view.run, data_parallel=data_parallel))
    words = " ".join(word.text for phrase in rank_table.headline(view, SCREEN) for word in phrase.words)  # type: ignore[union-attr]
    together, rank_rate = (float(number) for number in re.findall(r"([\d.]+) k", words))
    assert together / rank_rate == pytest.approx(data_parallel, rel=0.01)
    assert words.startswith(f"{size_words(8, view.run)} global batch 2,048")
    assert line_width(fitting(rank_table.headline(view, SCREEN), 60)) <= 60
    assert rank_table.headline(views.compared(), SCREEN) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "8 ranks, slow data",
            r"ranks ▁+█▁+|ranks [▁-█]{8} ⚠ rank 5 slow: data wait 3\.\d+ ms, others 0\.\d+ ms",
        ),
        ("8 ranks in trouble", r"ranks .*✖ rank 6 on node-1 was killed: .*"),
        ("2 ranks", r"ranks 2 ranks [▁-█]{2} \d+\.\d k samples/s each"),
        ("8 ranks, unsampled", "ranks 8 ranks"),
    ],
)
def test_the_ranks_in_one_line(name: str, text: str) -> None:
    line = draw_alone(rank_table.draw_line, rank_views.ALL[name](), 80).lines()[0]
    assert re.fullmatch(text, " ".join(line.split()))


def test_a_terminal_without_utf_8_gets_ascii() -> None:
    for build in rank_views.ALL.values():
        for size in SIZES.values():
            canvas = Canvas(*size, ascii_only=True)
            rank_table.draw(canvas, build(), ScreenState())
            assert "\n".join(canvas.lines()).isascii()
            assert "?" not in "".join(canvas.lines())


def test_a_warning_is_seen_in_the_strip() -> None:
    canvas = drawn(rank_views.view(64, "compute"), SIZES["120x40"])
    assert style_of(canvas, "▇") == Style.WARNING | BOLD
