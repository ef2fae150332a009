"""Checkpoints as files: whole or not there, whatever happens to the process, the disk or the bytes."""

import io
import os
import resource
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from amptui.checkpoint.file import (
    FORMAT,
    MAX_CHECKPOINTS,
    Checkpoint,
    DamagedError,
    checkpoint_name,
    checkpoints,
    prune,
    read,
    write,
)


def checkpoint_at(step: int, *, numbers: int = 1000) -> Checkpoint:
    """A checkpoint with something in it."""
    values: dict[str, Any] = {entry.name: {} for entry in fields(Checkpoint)}
    values |= {"step": step, "epoch": 2, "batches": 3, "seconds": 4.5, "precision": "bf16"}
    values["model"] = {"weight": torch.full((numbers,), float(step)), "tied": None}
    return Checkpoint(**values)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_gets_its_name_last(tmp_path: Path) -> None:
    there = list[list[str]]()
    write(checkpoint_at(1), tmp_path, before_it_counts=lambda: there.append(names(tmp_path)))
    assert there == [["step-000000001.pt.writing"]]
    assert names(tmp_path) == ["step-000000001.pt"]


@given(steps=st.sets(st.integers(0, 10**10), max_size=6))
def test_the_newest_are_kept(steps: set[int], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("checkpoints")
    for step in steps:
        (folder / checkpoint_name(step)).touch()
    others = ["step-1.pt", "step-000000001.pt.old", "notes.txt", "step-000000001.pt.writing"]
    for name in others:
        (folder / name).touch()
    prune(folder)
    newest = sorted(steps, reverse=True)[:MAX_CHECKPOINTS]
    assert [path.name for path in checkpoints(folder)] == [checkpoint_name(step) for step in newest]
    assert set(others) <= set(names(folder))


def flip(position: float) -> Callable[[bytes], bytes]:
    """Damage one bit at that part of the file."""

    def damage(content: bytes) -> bytes:
        at = int(position * len(content))
        return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]

    return damage


def saved(content: object) -> Callable[[bytes], bytes]:
    """Replace the file by another of torch's."""

    def replace(_content: bytes) -> bytes:
        file = io.BytesIO()
        torch.save(content, file)
        return file.getvalue()

    return replace


class Harmful:
    """Runs code when it is unpickled without care."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (7,)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda _: b"", ""),
        (lambda _: b"garbage", ""),
        (lambda content: content[: len(content) // 2], ""),
        (lambda content: content[:-1], ""),
        (flip(0.5), "checksum mismatch"),
        (saved([1, 2]), f"its format is None, but this amptui reads {FORMAT}"),
        (saved({"format": 99}), f"its format is 99, but this amptui reads {FORMAT}"),
        (saved({"format": FORMAT, "step": 1}), "unexpected or missing entries: "),
        (saved(Harmful()), "it holds more than tensors ("),
    ],
    ids=["empty", "garbage", "half", "cut", "bit", "other", "version", "lacks", "harmful"],
)
def test_a_damaged_file_is_refused_with_the_reason_in_one_line(
    damage: Callable[[bytes], bytes], said: str, tmp_path: Path
) -> None:
    write(checkpoint_at(1), tmp_path)
    (path,) = checkpoints(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DamagedError) as raised:
        read(path)
    assert said in str(raised.value)
    assert str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("limit", [0, 100_000, 1_199_000])
def test_a_disk_that_is_full_anywhere_in_the_file_is_an_oserror_and_leaves_nothing(
    limit: int, tmp_path: Path
) -> None:
    write(checkpoint_at(1), tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write(checkpoint_at(2, numbers=300_000), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert names(tmp_path) == ["step-000000001.pt"]
