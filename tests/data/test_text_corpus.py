"""Text as numbers: what is read, how it is cut into windows, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from amptui.base.errors import DataError
from amptui.data.sources import Arrays
from amptui.data.text_corpus import read_text, text_data

Watch = Callable[..., Any]

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture
def alphabet(tmp_path: Path) -> Path:
    path = tmp_path / "alphabet.txt"
    path.write_text(ALPHABET * 20)
    return path


@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\r"), min_size=1))
def test_a_text_can_be_told_from_its_numbers(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.txt"
    path.write_text(text, encoding="utf-8")
    found = read_text(path)
    assert "".join(found.characters[number] for number in found.numbers.tolist()) == text
    assert found.characters == "".join(sorted(set(text)))
    assert found.numbers.dtype == torch.int64


def test_without_a_file_python_s_reference_is_read_in_place_of_synthetic_text_too(watch: Watch) -> None:
    watched = watch("synthetic")
    assert text_data(watched.request, None, context=64).real
    assert watched.warnings == ["there is no synthetic text: training on Python's reference"]
    found = read_text(None)
    assert found.name == "Python's reference"
    assert len(found.numbers) > 100_000
    assert set(ALPHABET) < set(found.characters)


def test_a_target_is_the_character_that_follows(watch: Watch, alphabet: Path) -> None:
    data = text_data(watch().request, alphabet, context=8)
    assert (data.name, data.real) == ("alphabet.txt", True)
    for arrays in (data.train, data.validation):
        assert isinstance(arrays, Arrays)
        assert arrays.inputs.shape[1] == 8
        assert torch.equal((arrays.inputs + 1) % 26, arrays.targets)


def test_training_never_sees_the_last_tenth_and_validation_sees_it_once(watch: Watch, tmp_path: Path) -> None:
    text = "".join(map(chr, range(0x4E00, 0x4E00 + 1000)))  # each character once: its number is its place
    (tmp_path / "chinese.txt").write_text(text, encoding="utf-8")
    data = text_data(watch().request, tmp_path / "chinese.txt", context=16)
    assert isinstance(data.train, Arrays)
    assert isinstance(data.validation, Arrays)
    assert data.train.targets.max() < 900
    seen = data.validation.targets.flatten().tolist()
    assert seen == list(range(901, 901 + len(seen)))
    assert len(seen) > 80
    assert isinstance(data.train, Arrays)
    assert data.train.inputs[:4, 0].tolist() == [0, 2, 4, 6], "each is predicted eight times an epoch"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, r"cannot read \S*text\.txt \(No such file or directory\); .*--set text=PATH"),
        (b"", "is empty"),
        (b"abc\xff", r"text\.txt is not UTF-8 text \(byte 3\)"),
        (b"a" * 169, r"text\.txt has 169 characters, but context=16 needs 170; use a longer text"),
    ],
)
def test_what_cannot_be_trained_on_is_told(
    watch: Watch, tmp_path: Path, content: bytes | None, said: str
) -> None:
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=said):
        text_data(watch().request, path, context=16)
    path.write_text("a" * 170)  # the shortest that will do
    assert len(text_data(watch().request, path, context=16).validation) == 1  # type: ignore[arg-type]
