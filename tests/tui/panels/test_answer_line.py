"""The line below the header on narrow terminals: how worth and safety share it."""

import pytest

from amptui.diagnosis.amp_answer import amp_answer
from amptui.diagnosis.answer_words import safe_forms, safe_words, short_words, worth_words
from amptui.tui.panels import answer_panel
from amptui.tui.panels.phrases import precision_word
from tests.diagnosis import amp_situations
from tests.tui.panels.drawing import draw_alone


@pytest.mark.ci
@pytest.mark.parametrize("name", sorted(amp_situations.SITUATIONS))
def test_the_speed_is_told_in_fewer_words_before_it_is_left_out(name: str) -> None:
    view = amp_situations.view_of(name)
    answer = amp_answer(view)
    if answer.precision is None:
        pytest.skip("nothing is said of AMP")
    worth, short = worth_words(answer), short_words(answer.of("speed"))
    parts = [precision_word(answer.precision).text, short, f"✔ {safe_words(answer)}"]
    narrowest = len("  ".join(parts)) + 2
    for width in range(narrowest, narrowest + 40):
        line = draw_alone(answer_panel.draw_line, view, width).lines()[0]
        assert worth in line or short in line
        assert safe_words(answer) in line


@pytest.mark.ci
@pytest.mark.parametrize(("width", "least"), [(60, 25), (48, 15)])
def test_what_is_no_trouble_leaves_precision_and_speed_their_room(width: int, least: int) -> None:
    lines = 0
    for name in amp_situations.SITUATIONS:
        view = amp_situations.view_of(name)
        answer = amp_answer(view)
        if answer.precision is None or answer.cause is not None:
            continue  # trouble comes first
        precision, speed = precision_word(answer.precision).text, short_words(answer.of("speed"))
        if len("  ".join([precision, speed, f"✔ {safe_forms(answer)[-1]}"])) + 2 > width:
            continue
        line = draw_alone(answer_panel.draw_line, view, width).lines()[0]
        assert precision in line
        assert speed in line
        assert any(f" {form}" in line for form in safe_forms(answer))
        lines += 1
    assert lines >= least


def test_the_words_of_safety_become_shorter() -> None:
    view = amp_situations.view_of("foretold_by_the_histogram")
    full, shorter, shortest = safe_forms(amp_answer(view))
    assert full == safe_words(amp_answer(view))
    assert (shorter, shortest) == ("would be safe: 0% underflows", "would be safe")
