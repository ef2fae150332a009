"""Numbers as text, quickly: the same text as Python writes."""

from hypothesis import example, given
from hypothesis import strategies as st

from amptui.reports.export.number_texts import number_texts

NEAR = st.sampled_from([1e-4, 9.999999999999999e-05, 1e16, 9999999999999998.0, 0.0, -0.0, 5e-324, 65536.0])

USUAL = st.floats(1e-4, 1e16, exclude_max=True) | st.floats(1e-4, 1e3)

FLOATS = st.one_of(
    st.lists(USUAL), st.lists(st.floats() | NEAR), st.lists(st.floats() | st.none()), st.lists(USUAL | NEAR)
)


@example([0.0, -0.0])
@example([1.0, float("nan")])
@example([1e308, 1e308])
@given(FLOATS | st.lists(st.none() | st.integers(0, 2**53)))
def test_a_column_is_written_as_python_writes_each_number(values: list[float | None]) -> None:
    assert list(number_texts(values)) == ["" if value is None else repr(value) for value in values]
