"""The folder beside a sharded model's checkpoint: each rank's file, in torch.distributed.checkpoint's format.

The checkpoint itself says what is in the files, so nothing here is unpickled. ``.metadata`` says the same to
``torch.distributed.checkpoint.load``.
"""

import os
import pickle
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

from amptui.base.runfiles import FOLDER_MODE, open_new, open_to_read, opened_folder
from amptui.engine.checkpoint.disk_file import SummedFile

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata

Keys = tuple[str | int, ...]
"""Where a tensor is: ``("model", name)``, or ``("optimizer", "state", number, name)``."""

_FOLDER = re.compile(r"step-(\d{9,})\.[0-9a-f]+-\d+\.shards")

_FILE = re.compile(r"__\d+_0\.distcp")

_METADATA = ".metadata"

_READ_BYTES = 2**22


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What one rank has of a tensor."""

    keys: Keys
    shape: Sequence[int]
    """Of the whole tensor."""
    offsets: Sequence[int]
    tensor: Tensor


class _Chunk(NamedTuple):
    """Where a part is in its file."""

    keys: Keys
    dtype: torch.dtype
    shape: Sequence[int]
    offsets: Sequence[int]
    sizes: Sequence[int]
    start: int
    """In bytes."""
    size_bytes: int


class ShardFile(NamedTuple):
    """One rank's file, in plain values and tuples of them."""

    name: str
    size_bytes: int
    checksum: int
    """CRC-32."""
    chunks: Sequence[_Chunk]

    @classmethod
    def from_plain(cls, plain: Sequence[Any]) -> "ShardFile":
        """Inverse of ``tuple()``, from a file. Raises ValueError or TypeError."""
        name, size_bytes, checksum, chunks = plain
        if not _FILE.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a rank's file")
        return cls(name, size_bytes, checksum, [_Chunk(*each) for each in chunks])

    def plain(self) -> tuple[Any, ...]:
        """As plain values, for a checkpoint."""
        return self.name, self.size_bytes, self.checksum, [tuple(each) for each in self.chunks]


@dataclass(frozen=True, slots=True, eq=False)
class Shards:
    """All parts of a model and of its optimizer's state."""

    folder: Path
    files: Sequence[ShardFile]
    """Of each rank."""

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], beside: Path) -> "Shards":
        """Inverse of :meth:`plain`; ``beside`` is the checkpoints' folder. Raises ValueError and others."""
        if not _FOLDER.fullmatch(plain["folder"]):
            raise ValueError(f"{plain['folder']!r} is no name of a folder of shards")
        return cls(beside / plain["folder"], [ShardFile.from_plain(each) for each in plain["files"]])

    def plain(self) -> dict[str, Any]:
        """As plain values, for a checkpoint."""
        return {"folder": self.folder.name, "files": [each.plain() for each in self.files]}

    @property
    def size_bytes(self) -> int:
        """Of all files of the ranks."""
        return sum(each.size_bytes for each in self.files)

    def check(self, *, checksums: bool) -> None:
        """Raise OSError or ValueError if a file is missing, cut or, with ``checksums``, changed."""
        with opened_folder(self.folder) as folder:
            for each in self.files:
                where = f"{self.folder.name}/{each.name}"
                with open_to_read(each.name, folder=folder) as file:
                    found = os.fstat(file.fileno()).st_size
                    if found != each.size_bytes:
                        raise ValueError(f"{where} has {found:,} bytes instead of {each.size_bytes:,}")
                    if checksums and _checksum(file) != each.checksum:
                        raise ValueError(f"checksum mismatch in {where}")

    def write_metadata(self) -> None:
        """Write what torch's own reader needs; not before all files are there. Raises OSError."""
        with opened_folder(self.folder) as folder:
            file = SummedFile(open_new(_METADATA, folder=folder))
            try:
                file.write(pickle.dumps(self._metadata()))
                file.sync()
            finally:
                file.close()
            with suppress(OSError):  # not every file system can sync a folder
                os.fsync(folder)

    def fill(self, states: Any, room: Callable[[Keys, Tensor], Tensor]) -> Any:
        """``states`` with the tensors that are here instead of empty ones on the meta device.

        ``room`` makes the tensor that one is read into: a ``DTensor`` takes its own part, however many ranks
        wrote it. Raises OSError, and RuntimeError or KeyError if they are of another model.
        """
        from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
        from torch.distributed.checkpoint.filesystem import FileSystemReader

        found: dict[str, Tensor] = {}

        def take(keys: Keys, meta: Tensor) -> Tensor:
            return found.setdefault(_name(keys), room(keys, meta))

        filled = replaced(states, lambda tensor: tensor.is_meta, take)
        # As torch.distributed.checkpoint.load does it for one process, but with our own metadata: its file is
        # a pickle, which could run any code.
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        reader, metadata = FileSystemReader(self.folder), self._metadata()
        planner.set_up_planner(dict(found), metadata, is_coordinator=True)
        reader.set_up_storage_reader(metadata, is_coordinator=True)
        reader.read_data(planner.finish_plan(planner.create_local_plan()), planner).wait()
        return filled

    def _metadata(self) -> "Metadata":
        from torch.distributed.checkpoint.filesystem import _StorageInfo
        from torch.distributed.checkpoint.metadata import (
            ChunkStorageMetadata,
            Metadata,
            MetadataIndex,
            TensorProperties,
            TensorStorageMetadata,
        )

        tensors: dict[str, Any] = {}
        places: dict[MetadataIndex, _StorageInfo] = {}
        keys: dict[str, Keys] = {}
        for file in self.files:
            for each in file.chunks:
                name, offsets = _name(each.keys), torch.Size(each.offsets)
                keys[name] = each.keys
                whole = TensorStorageMetadata(TensorProperties(each.dtype), torch.Size(each.shape), [])
                chunk = ChunkStorageMetadata(offsets, torch.Size(each.sizes))
                tensors.setdefault(name, whole).chunks.append(chunk)
                places[MetadataIndex(name, offsets)] = _StorageInfo(file.name, each.start, each.size_bytes)
        return Metadata(tensors, planner_data=keys, storage_data=places)


def shards_name(step: int, start: str, number: int) -> str:
    """``step-000001200.3f9a-7.shards``: of the checkpoint with that number since the ranks' ``start``.

    A folder of the same step, which still counts, has another name.
    """
    return f"step-{step:09d}.{start}-{number}.shards"


def write_part(folder: Path, rank: int, parts: Sequence[Part]) -> ShardFile:
    """Write what ``rank`` has, in host memory, into ``folder``, created if missing. Raises OSError."""
    folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
    name = f"__{rank}_0.distcp"
    chunks: list[_Chunk] = []
    with opened_folder(folder) as opened:
        file = SummedFile(open_new(name, folder=opened))
        try:
            for part in parts:
                start = file.size_bytes
                # A copy has a storage of its own; all of a storage is written.
                torch.save(part.tensor.clone(), file)  # type: ignore[arg-type]  # torch needs no more of a file
                size_bytes = file.size_bytes - start
                dtype, sizes = part.tensor.dtype, tuple(part.tensor.shape)
                chunks.append(
                    _Chunk(part.keys, dtype, tuple(part.shape), tuple(part.offsets), sizes, start, size_bytes)
                )
            file.sync()
        finally:
            file.close()
    return ShardFile(name, file.size_bytes, file.checksum, chunks)


def whole_room(_keys: Keys, meta: Tensor) -> Tensor:
    """Room for a whole tensor, in host memory."""
    return torch.empty_like(meta, device="cpu")


def step_of_shards(name: str) -> int | None:
    """The step of a folder of that name; None if it is none of ours."""
    found = _FOLDER.fullmatch(name)
    return int(found[1]) if found else None


def remove_shards(name: str, *, folder: int) -> None:
    """Remove the folder ``name`` in the opened ``folder``, as far as we wrote it and may."""
    with suppress(OSError):
        opened = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            for each in os.listdir(opened):  # noqa: PTH208 - a descriptor, not a path
                if each == _METADATA or _FILE.fullmatch(each):
                    os.unlink(each, dir_fd=opened)
        finally:
            os.close(opened)
        os.rmdir(name, dir_fd=folder)


def replaced(
    state: Any, which: Callable[[Tensor], bool], by: Callable[[Keys, Tensor], Any], keys: Keys = ()
) -> Any:
    """``state`` with other values ``by`` the tensors for ``which`` that is true; containers are copied.

    A ``state_dict()`` keeps its versions.
    """
    if isinstance(state, Tensor):
        return by(keys, state) if which(state) else state
    if isinstance(state, dict):
        same = copy(state)
        same.update({name: replaced(value, which, by, (*keys, name)) for name, value in state.items()})
        return same
    if isinstance(state, list):
        return [replaced(each, which, by, (*keys, index)) for index, each in enumerate(state)]
    return state


def _name(keys: Keys) -> str:
    return ".".join(map(str, keys))


def _checksum(file: BinaryIO) -> int:
    checksum = 0
    while piece := file.read(_READ_BYTES):
        checksum = zlib.crc32(piece, checksum)
    return checksum
