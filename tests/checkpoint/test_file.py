"""Checkpoints as files: whole or not there, whatever happens to the process, the disk or the bytes."""

import io
import os
import pickle
import resource
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from amptui.checkpoint.file import (
    FORMAT,
    MAX_CHECKPOINTS,
    Checkpoint,
    DamagedError,
    Shards,
    checkpoint_name,
    checkpoints,
    clear,
    prune,
    read,
    shards_name,
    whole_room,
    write,
    write_part,
)
from amptui.checkpoint.states import Part
from amptui.loops.resume import newest_checkpoint


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


WEIGHT = torch.arange(15.0).reshape(5, 3)

MOMENT = torch.arange(4.0).to(torch.bfloat16)


def sharded(folder: Path, step: int, number: int = 1) -> Any:
    """A checkpoint whose shards two ranks have written: of 5 rows, and of 4 numbers that rank 1 has alone."""
    place = folder / shards_name(step, "abc", number)
    weight, moment = ("model", "weight"), ("optimizer", "state", 0, "moment")
    files = [
        write_part(place, 0, [Part(weight, (5, 3), (0, 0), WEIGHT[:3])]),
        write_part(place, 1, [Part(weight, (5, 3), (3, 0), WEIGHT[3:]), Part(moment, (4,), (0,), MOMENT)]),
    ]
    shards = Shards(place, files)
    shards.write_metadata()
    state = {"state": {0: {"moment": on_meta(MOMENT), "step": torch.tensor(3.0)}}, "param_groups": []}
    model = {"weight": on_meta(WEIGHT), "mean": torch.ones(3)}
    return replace(checkpoint_at(step), model=model, optimizer=state, shards=shards)


def on_meta(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="meta")


def test_parts_are_read_as_whole_tensors_and_torch_s_metadata_is_not_unpickled(tmp_path: Path) -> None:
    size_bytes = write(sharded(tmp_path, 7), tmp_path)
    (path,) = checkpoints(tmp_path)
    checkpoint: Any = read(path)
    files = [path, *checkpoint.shards.folder.glob("*.distcp")]
    assert len(files) == 3
    assert size_bytes == sum(file.stat().st_size for file in files)
    (checkpoint.shards.folder / ".metadata").write_bytes(pickle.dumps(Harmful()))
    states = {"model": checkpoint.model, "optimizer": checkpoint.optimizer}
    filled = checkpoint.shards.fill(states, whole_room)
    assert torch.equal(filled["model"]["weight"], WEIGHT)
    assert torch.equal(filled["model"]["mean"], torch.ones(3))
    assert torch.equal(filled["optimizer"]["state"][0]["moment"], MOMENT)


def test_torch_reads_the_folder_too(tmp_path: Path) -> None:
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save(sharded(tmp_path, 7).shards.folder, tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt", weights_only=True)
    assert torch.equal(whole["model"]["weight"], WEIGHT)
    assert torch.equal(whole["optimizer"]["state"][0]["moment"], MOMENT)


def cut(content: bytes) -> bytes:
    return content[:-1]


@pytest.mark.parametrize("damage", [flip(0.5), cut, None], ids=["bit", "cut", "gone"])
def test_a_damaged_part_is_noticed_and_the_checkpoint_before_is_used(
    tmp_path: Path, damage: Callable[[bytes], bytes] | None
) -> None:
    for step in (7, 8):
        write(sharded(tmp_path, step), tmp_path)
    path = tmp_path / shards_name(8, "abc", 1) / "__1_0.distcp"
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))
    said: list[str] = []
    assert newest_checkpoint(tmp_path, said.append).step == 7
    assert len(said) == 1


def test_shards_go_with_their_checkpoint(tmp_path: Path) -> None:
    for step in range(1, MAX_CHECKPOINTS + 2):
        write(sharded(tmp_path, step), tmp_path)
    sharded(tmp_path, 98)  # of a killed process
    prune(tmp_path)
    clear(tmp_path, after=2)
    assert names(tmp_path) == sorted(
        name + (".old" if step > 2 else "")
        for step in range(2, MAX_CHECKPOINTS + 2)
        for name in (checkpoint_name(step), shards_name(step, "abc", 1))
    )


def test_a_second_checkpoint_of_a_step_replaces_the_first_at_once(tmp_path: Path) -> None:
    for number in (1, 2):
        write(sharded(tmp_path, 3, number), tmp_path)
    assert names(tmp_path) == [shards_name(3, "abc", 2), checkpoint_name(3)]
    assert read(tmp_path / checkpoint_name(3)).shards is not None


def test_a_checkpoint_does_not_count_without_its_shards(tmp_path: Path) -> None:
    checkpoint = sharded(tmp_path, 3)
    os.truncate(checkpoint.shards.folder / "__0_0.distcp", 10)
    with pytest.raises(ValueError, match="bytes instead of"):
        write(checkpoint, tmp_path)
    assert names(tmp_path) == []
