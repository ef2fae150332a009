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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from amptui.base.runfiles import FOLDER_MODE, open_new, open_to_read, opened_folder
from amptui.checkpoint.states import DiskFile, Keys, Part, replaced

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata

_FOLDER = re.compile(r"step-(\d{9,})\.[0-9a-f]+-\d+\.shards")

_FILE = re.compile(r"__\d+_0\.distcp")

_METADATA = ".metadata"

_READ_BYTES = 2**22

Chunk = tuple[Keys, torch.dtype, Sequence[int], Sequence[int], Sequence[int], int, int]
"""A part in a file: its keys, its dtype, the shape of the whole tensor, offsets and sizes of the part in it,
where the part begins in the file, and how many bytes it has."""

ShardFile = tuple[str, int, int, Sequence[Chunk]]
"""One rank's file: its name, its bytes, their CRC-32, and the parts in it."""


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
        for name, *_ in plain["files"]:
            if not _FILE.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a rank's file")
        return cls(beside / plain["folder"], plain["files"])

    def plain(self) -> dict[str, Any]:
        """As plain values, for a checkpoint."""
        return {"folder": self.folder.name, "files": self.files}

    def check(self, *, checksums: bool) -> None:
        """Raise OSError or ValueError if a file is missing, cut or, with ``checksums``, changed."""
        with opened_folder(self.folder) as folder:
            for name, size_bytes, checksum, _ in self.files:
                where = f"{self.folder.name}/{name}"
                with open_to_read(name, folder=folder) as file:
                    found_bytes = os.fstat(file.fileno()).st_size
                    if found_bytes != size_bytes:
                        raise ValueError(f"{where} has {found_bytes:,} bytes instead of {size_bytes:,}")
                    actual = 0
                    while checksums and (piece := file.read(_READ_BYTES)):
                        actual = zlib.crc32(piece, actual)
                    if checksums and actual != checksum:
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

        def take(keys: Keys, tensor: Tensor) -> Tensor:
            return tensors.setdefault(_name(keys), room(keys, tensor)) if tensor.is_meta else tensor

        filled = replaced(states, take)
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
        names: dict[str, Keys] = {}
        for file_name, _, _, chunks in self.files:
            for keys, dtype, shape, offsets, sizes, start, size_bytes in chunks:
                name, offset = _name(keys), torch.Size(offsets)
                names[name] = keys
                whole = TensorStorageMetadata(TensorProperties(dtype), torch.Size(shape), [])
                part = ChunkStorageMetadata(offset, torch.Size(sizes))
                tensors.setdefault(name, whole).chunks.append(part)
                places[MetadataIndex(name, offset)] = _StorageInfo(file_name, start, size_bytes)
        return Metadata(tensors, planner_data=names, storage_data=places)


class _SummedFile(DiskFile):
    """A file whose checksum is known when it is written."""

    checksum = 0
    """The CRC-32 of what was written so far."""

    def write(self, data: bytes) -> int:
        self.checksum = zlib.crc32(data, self.checksum)
        return super().write(data)


def write_part(folder: Path, rank: int, parts: Sequence[Part]) -> ShardFile:
    """Write what ``rank`` has, in host memory, into ``folder``, created if missing. Raises OSError."""
    folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
    name = f"__{rank}_0.distcp"
    chunks: list[Chunk] = []
    with opened_folder(folder) as opened, _SummedFile(open_new(name, folder=opened)) as file:
        for keys, shape, offsets, tensor in parts:
            start = file.size_bytes
            # A copy has a storage of its own; all of a storage is written.
            torch.save(tensor.clone(), file)  # type: ignore[arg-type]  # torch needs no more of a file
            place = (tuple(shape), tuple(offsets), tuple(tensor.shape))
            chunks.append((keys, tensor.dtype, *place, start, file.size_bytes - start))
    return name, file.size_bytes, file.checksum, chunks


def shards_name(step: int, start: str, number: int) -> str:
    """``step-000001200.3f9a-7.shards``: of the checkpoint with that number since the ranks' ``start``.

    A folder of the same step, which still counts, has another name.
    """
    return f"step-{step:09d}.{start}-{number}.shards"


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


def _name(keys: Keys) -> str:
    return ".".join(map(str, keys))
