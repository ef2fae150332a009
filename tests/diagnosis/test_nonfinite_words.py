"""What is said of NaN and Inf: what holds them, and plainly what to do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.diagnosis.nonfinite import by_module, found_line, named, storm_details, what_is_not_finite
from amptui.records.run import NonFiniteKind
from amptui.telemetry.events import Storm
from tests.telemetry.record_samples import nonfinite


def explanation(what: str, *, in_float16: bool) -> str:
    found = nonfinite(1, what=what)
    return storm_details(Storm(first=found, last=found, times=1, in_float16=in_float16))[0]


@pytest.mark.parametrize("in_float16", [True, False])
def test_a_poisoned_buffer_is_explained_alike_in_every_precision(in_float16: bool) -> None:
    assert "the scaler does not check them" in explanation("buffer", in_float16=in_float16)


@pytest.mark.parametrize("what", ["loss", "gradient", "activation", "buffer"])
@pytest.mark.parametrize("in_float16", [True, False])
def test_every_trouble_is_explained_in_one_to_three_sentences(what: str, in_float16: bool) -> None:
    told = explanation(what, in_float16=in_float16)
    assert 1 <= told.count(". ") + 1 <= 3
    assert told.endswith(".")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "the loss is NaN"),
        ({"kind": "inf"}, "the loss is Inf"),
        (
            {"what": "gradient", "names": ("a.weight", "b"), "count": 3},
            "NaN in the gradient of a.weight (+2)",
        ),
        ({"what": "buffer", "names": ("bn.running_var",)}, "NaN in the buffer bn.running_var"),
        ({"what": "activation", "names": ("a",), "kind": "inf"}, "Inf in the output of a"),
    ],
)
def test_what_is_not_finite_is_named(changes: dict[str, object], text: str) -> None:
    assert what_is_not_finite(nonfinite(1, **changes)) == text


def test_without_names_there_is_still_a_count() -> None:
    assert named((), 1200) == "1,200 tensors"


@pytest.mark.parametrize(
    ("names", "kinds", "count", "text"),
    [
        ((), (), 3, ""),
        (("a.weight",), ("inf",), 1, "Inf in a (weight)"),
        (
            ("a.b.weight", "a.b.bias", "c.weight", "scale"),
            ("nan", "nan", "inf", "inf"),
            7,
            "NaN in a.b (weight, bias); Inf in c (weight), the model (scale); 3 more",
        ),
        (("a.weight", "b.weight"), (), None, "NaN or Inf in a (weight), b (weight)"),
    ],
)
def test_parameters_are_told_by_what_they_hold_and_by_their_module(
    names: tuple[str, ...], kinds: tuple[NonFiniteKind, ...], count: int | None, text: str
) -> None:
    assert by_module(names, kinds, count) == text


NAMES = st.from_regex(r"[a-c](\.[a-c]){0,2}", fullmatch=True)


@given(found=st.lists(st.tuples(NAMES, st.sampled_from(["nan", "inf"]))))
def test_every_name_is_told_once(found: list[tuple[str, NonFiniteKind]]) -> None:
    names, kinds = [name for name, _ in found], [kind for _, kind in found]
    text = by_module(names, kinds, len(found))
    inside = [part.partition(")")[0].split(", ") for part in text.split("(")[1:]]
    assert sorted(name for part in inside for name in part) == sorted(n.rpartition(".")[2] for n in names)
    assert ("NaN in" in text, "Inf in" in text) == ("nan" in kinds, "inf" in kinds)


def test_a_step_is_told_with_what_was_found_in_it() -> None:
    buffers = nonfinite(612, what="buffer", names=("bn.running_mean",), kinds=("nan",))
    assert found_line(buffers) == "step 612: NaN in bn (running_mean)"
    assert found_line(nonfinite(612, what="activation", names=("a.conv", "b"))) == "step 612: a.conv, b"
    assert found_line(nonfinite(612)) == ""
