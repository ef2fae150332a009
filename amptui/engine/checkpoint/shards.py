"""The folder beside a sharded model's checkpoint: each rank's file, in torch.distributed.checkpoint's format.

The checkpoint itself says what is in the files; ``.metadata`` says the same to anybody's
``torch.distributed.checkpoint.load``, and to ours through its own reader and planner. Its ``save`` and
``async_save`` do not write the folder:

- They agree by collectives, which need a process group that training does not use, and in which all wait for
  a rank that has stopped until the group's timeout.
- Without collectives each rank's file has metadata of its own, of which another number of ranks loads only
  some, without an error.
- There is no checksum: a flipped bit is loaded.
- ``.metadata`` is a pickle, and reading it could run any code.
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
from amptui.engine.checkpoint.disk_file import DiskFile, SummedFile

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
        return cls(name, size_bytes, checksum, [_Chunk(*chunk) for chunk in chunks])

    def plain(self) -> tuple[Any, ...]:
        """As plain values, for a checkpoint."""
        return self.name, self.size_bytes, self.checksum, [tuple(chunk) for chunk in self.chunks]


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
        return cls(beside / plain["folder"], [ShardFile.from_plain(file) for file in plain["files"]])

    def plain(self) -> dict[str, Any]:
        """As plain values, for a checkpoint."""
        return {"folder": self.folder.name, "files": [file.plain() for file in self.files]}

    @property
    def size_bytes(self) -> int:
        """Of all files of the ranks."""
        return sum(file.size_bytes for file in self.files)

    def check(self, *, checksums: bool) -> None:
        """Raise OSError or ValueError if a file is missing, cut or, with ``checksums``, changed."""
        with opened_folder(self.folder) as folder:
            for shard in self.files:
                where = f"{self.folder.name}/{shard.name}"
                with open_to_read(shard.name, folder=folder) as file:
                    size_bytes = os.fstat(file.fileno()).st_size
                    if size_bytes != shard.size_bytes:
                        raise ValueError(f"{where} has {size_bytes:,} bytes instead of {shard.size_bytes:,}")
                    if checksums and _checksum(file) != shard.checksum:
                        raise ValueError(f"checksum mismatch in {where}")

    def write_metadata(self) -> None:
        """Write what torch's own reader needs; not before all files are there. Raises OSError."""
        with opened_folder(self.folder) as folder:
            with DiskFile(open_new(_METADATA, folder=folder)) as file:
                file.write(pickle.dumps(self._metadata()))
            with suppress(OSError):  # not every file system can sync a folder
                os.fsync(folder)

    def fill(self, states: Any, room: Callable[[Keys, Tensor], Tensor]) -> Any:
        """``states`` with the tensors that are here instead of empty ones on the meta device.

        ``room`` makes the tensor that one is read into: a ``DTensor`` takes its own part, however many ranks
        wrote it. Raises OSError, and RuntimeError or KeyError if they are of another model.
        """
        from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
        from torch.distributed.checkpoint.filesystem import FileSystemReader

        tensors: dict[str, Tensor] = {}

        def take(keys: Keys, meta: Tensor) -> Tensor:
            return tensors.setdefault(_name(keys), room(keys, meta))

        filled = replaced(states, lambda tensor: tensor.is_meta, take)
        # As torch.distributed.checkpoint.load does it for one process, but with our own metadata: its file is
        # a pickle, which could run any code.
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        reader, metadata = FileSystemReader(self.folder), self._metadata()
        planner.set_up_planner(dict(tensors), metadata, is_coordinator=True)
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
            for chunk in file.chunks:
                name, offsets = _name(chunk.keys), torch.Size(chunk.offsets)
                keys[name] = chunk.keys
                whole = TensorStorageMetadata(TensorProperties(chunk.dtype), torch.Size(chunk.shape), [])
                part = ChunkStorageMetadata(offsets, torch.Size(chunk.sizes))
                tensors.setdefault(name, whole).chunks.append(part)
                places[MetadataIndex(name, offsets)] = _StorageInfo(file.name, chunk.start, chunk.size_bytes)
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
    with opened_folder(folder) as opened, SummedFile(open_new(name, folder=opened)) as file:
        for part in parts:
            start, tensor = file.size_bytes, part.tensor
            # A copy has a storage of its own; all of a storage is written.
            torch.save(tensor.clone(), file)  # type: ignore[arg-type]  # torch needs no more of a file
            place = (tuple(part.shape), tuple(part.offsets), tuple(tensor.shape))
            chunks.append(_Chunk(part.keys, tensor.dtype, *place, start, file.size_bytes - start))
    return ShardFile(name, file.size_bytes, file.checksum, chunks)


def whole_room(_keys: Keys, meta: Tensor) -> Tensor:
    """Room for a whole tensor, in host memory."""
    return torch.empty_like(meta, device="cpu")


def step_of_shards(name: str) -> int | None:
    """The step of a folder of that name; None if it is none of ours."""
    match = _FOLDER.fullmatch(name)
    return int(match[1]) if match else None


def remove_shards(name: str, *, folder: int) -> None:
    """Remove the folder ``name`` in the opened ``folder``, as far as we wrote it and may."""
    with suppress(OSError):
        opened = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            for file_name in os.listdir(opened):  # noqa: PTH208 - a descriptor, not a path
                if file_name == _METADATA or _FILE.fullmatch(file_name):
                    os.unlink(file_name, dir_fd=opened)
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
        return [replaced(value, which, by, (*keys, index)) for index, value in enumerate(state)]
    return state


def _name(keys: Keys) -> str:
    return ".".join(map(str, keys))


def _checksum(file: BinaryIO) -> int:
    checksum = 0
    while piece := file.read(_READ_BYTES):
        checksum = zlib.crc32(piece, checksum)
    return checksum
