"""The one answer on AMP: what it concludes in each situation, and from what; no surface says otherwise."""

import pytest

from amptui.diagnosis.amp_answer import amp_answer
from amptui.diagnosis.answer_words import answer_lines
from tests.diagnosis.amp_situations import SITUATIONS, view_of

situations = pytest.mark.parametrize("name", SITUATIONS)


@situations
def test_the_answer_follows_from_what_happened_first(name: str) -> None:
    expected, answer = SITUATIONS[name], amp_answer(view_of(name))
    cause = None if answer.cause is None else (answer.cause.subject, answer.cause.state)
    found = answer.worth, answer.safety, cause, answer.precision
    assert found == (expected.worth, expected.safety, expected.cause, expected.precision), answer_lines(
        answer
    )
