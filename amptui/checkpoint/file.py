"""Checkpoint files: written completely or not at all, and read without running code.

Beside a sharded model's is a folder with each rank's file, in torch.distributed.checkpoint's format. The
checkpoint itself says what is in the files; ``.metadata`` says the same to anybody's
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
import shutil
import zipfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from amptui.base.runfiles import FOLDER_MODE, names_in, open_new, sync_folder
from amptui.checkpoint.states import DiskFile, Keys, Part, load_plain, replaced, save_whole

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata

_FOLDER = re.compile(r"step-(\d{9,})\.[0-9a-f]+-\d+\.shards")

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

    def check(self, *, checksums: bool) -> None:
        """Raise OSError or ValueError if a file is missing, cut or, with ``checksums``, changed."""
        for name, size_bytes, checksum, _ in self.files:
            where = f"{self.folder.name}/{name}"
            with (self.folder / name).open("rb") as file:
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
        with DiskFile(open_new(self.folder / _METADATA)) as file:
            file.write(pickle.dumps(self._metadata()))
        sync_folder(self.folder)

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
    for missing in (folder.parent, folder):  # not the run's own: one that was moved is not made anew
        missing.mkdir(FOLDER_MODE, exist_ok=True)
    name = f"__{rank}_0.distcp"
    chunks: list[Chunk] = []
    with _SummedFile(open_new(folder / name)) as file:
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


def _name(keys: Keys) -> str:
    return ".".join(map(str, keys))


FORMAT = 2
"""Increased when the meaning of a file's content changes."""

MAX_CHECKPOINTS = 3
"""How many checkpoints are kept, in case the newest gets damaged."""

WRITING = ".writing"
"""The suffix of an unfinished file."""

SET_ASIDE = ".old"
"""The suffix of a file that resuming ignores."""

_NAME = re.compile(r"step-(\d{9,})\.pt")

Place = tuple[int, int, int, str]
"""Step, epoch, finished batches of the epoch, precision."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """Everything needed to resume after ``step``: plain values, and tensors in host memory."""

    step: int
    epoch: int
    """The epoch that the next step or validation belongs to; the number of epochs + 1 at the end."""
    batches: int
    """How many of its batches were trained on."""
    seconds: float
    """How long the run had lasted."""
    precision: str
    identity: dict[str, Any]
    """Settings that distinguish this training from others."""
    model: dict[str, Any]
    """``state_dict()``; in it and in ``optimizer``, tensors that are in ``shards`` are on the meta device."""
    model_versions: dict[str, Any]
    """The ``_metadata`` of ``model``: the versions of its modules' states."""
    optimizer: dict[str, Any]
    scaler: dict[str, Any]
    extras: dict[str, Any]
    """States of other objects of the experiment, such as a learning-rate scheduler, by attribute."""
    draws: dict[str, Any]
    """Every random generator after ``step``."""
    epoch_draws: dict[str, Any]
    """Every random generator before the epoch's first batch."""
    loop: dict[str, Any]
    """The state of the training loop."""
    ranks: list[dict[str, Any]] = field(default_factory=list)
    """Of the other ranks from rank 1 on: their ``batches``, ``draws`` and ``epoch_draws``; empty for a single
    process."""
    shards: Shards | None = None
    """Where the parts of a sharded model are."""
    parts: list[Part] = field(default_factory=list)
    """This rank's, which are not in the file but will be in ``shards``."""

    @property
    def world_size(self) -> int:
        """How many ranks wrote it."""
        return 1 + len(self.ranks)

    @property
    def place(self) -> Place:
        """The point in the training; no two checkpoints of a run share it."""
        return self.step, self.epoch, self.batches, self.precision


_ENTRIES = tuple(entry.name for entry in fields(Checkpoint) if entry.name != "parts")
"""What a file holds besides its format."""


class DamagedError(Exception):
    """A damaged or incomplete checkpoint; the message says why."""


def checkpoint_name(step: int) -> str:
    """``step-000001200.pt``."""
    return f"step-{step:09d}.pt"


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in ``folder``, newest first; empty if it does not exist."""
    names = sorted(filter(_NAME.fullmatch, names_in(folder)), key=_step, reverse=True)
    return [folder / name for name in names]


def prune(folder: Path) -> None:
    """Remove all but the newest ``MAX_CHECKPOINTS`` checkpoints. Raises OSError.

    Nothing may be in the middle of being written.
    """
    for path in checkpoints(folder)[MAX_CHECKPOINTS:]:
        path.unlink(missing_ok=True)
    _remove_lost_shards(folder)


def _remove_lost_shards(folder: Path) -> None:
    """Remove the shards of all steps without a checkpoint."""
    names = names_in(folder)  # once: all shards would look lost beside a list that could not be read
    steps = {_step(name) for name in names if _NAME.fullmatch(name)}
    for name in names:
        step = step_of_shards(name)
        if step is not None and step not in steps:
            shutil.rmtree(folder / name, ignore_errors=True)


def clear(folder: Path, *, after: int) -> None:
    """Remove unfinished files of a killed process, and set aside checkpoints after step ``after``.

    The run does not continue from those: they are damaged, or of another training.
    """
    _remove_lost_shards(folder)
    for name in names_in(folder):
        with suppress(OSError):
            step = _step(name) if _NAME.fullmatch(name) else step_of_shards(name)
            if _NAME.fullmatch(name.removesuffix(WRITING)) and name.endswith(WRITING):
                (folder / name).unlink()
            elif step is not None and step > after:
                (folder / name).replace(folder / (name + SET_ASIDE))


def write(
    checkpoint: Checkpoint, folder: Path, *, before_it_counts: Callable[[], object] = lambda: None
) -> int:
    """Write ``checkpoint`` into ``folder``, which is created if missing; return its bytes with its shards.

    ``before_it_counts`` is called when the file is on the disk but has not got its name yet. If this raises,
    no file is left, nor are its shards, which have to be on the disk already.
    """
    folder.mkdir(FOLDER_MODE, exist_ok=True)
    path = folder / checkpoint_name(checkpoint.step)
    unfinished = folder / (path.name + WRITING)
    shards = checkpoint.shards
    content = {entry: getattr(checkpoint, entry) for entry in _ENTRIES}
    content["shards"] = {"folder": shards.folder.name, "files": shards.files} if shards else None
    try:
        size_bytes = save_whole({"format": FORMAT, **content}, open_new(unfinished))
        before_it_counts()
        if shards:
            shards.check(checksums=False)
            size_bytes += sum(part_bytes for _, part_bytes, *_ in shards.files)
        unfinished.replace(path)
    except BaseException:
        if shards:
            shutil.rmtree(shards.folder, ignore_errors=True)
        raise
    finally:
        with suppress(OSError):
            unfinished.unlink()
    sync_folder(folder)
    for older in names_in(folder):
        if step_of_shards(older) == checkpoint.step and not (shards and older == shards.folder.name):
            shutil.rmtree(folder / older, ignore_errors=True)
    return size_bytes


def read(path: Path, *, checksums: bool = True) -> Checkpoint:
    """The checkpoint in ``path``, with its own tensors in host memory. Raises DamagedError.

    Without ``checksums`` of its shards only their sizes are checked.
    """
    try:
        with path.open("rb") as file:
            # torch checks no checksums.
            with zipfile.ZipFile(file) as archive:
                wrong = archive.testzip()
            if wrong is not None:
                raise DamagedError(f"checksum mismatch in {wrong}")
            file.seek(0)
            content = load_plain(file)
    except (DamagedError, MemoryError):
        raise
    except OSError as error:
        raise DamagedError(error.strerror or str(error)) from error
    except Exception as error:
        # A damaged archive, or the pickle in it, may raise anything.
        raise DamagedError(str(error).strip().partition("\n")[0] or type(error).__name__) from error
    file_format = content.pop("format", None) if isinstance(content, dict) else None
    if file_format != FORMAT:
        raise DamagedError(f"its format is {file_format}, but this amptui reads {FORMAT}")
    if different := content.keys() ^ set(_ENTRIES):
        raise DamagedError(f"unexpected or missing entries: {', '.join(sorted(map(str, different)))}")
    plain = content["shards"]
    try:
        if plain is not None:
            content["shards"] = Shards(path.parent / plain["folder"], plain["files"])
            content["shards"].check(checksums=checksums)
    except OSError as error:
        raise DamagedError(f"{plain['folder']}: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedError(str(error)) from error
    return Checkpoint(**content)


def _step(name: str) -> int:
    match = _NAME.fullmatch(name)
    assert match, "the name of a checkpoint"
    return int(match[1])
