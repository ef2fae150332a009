"""Checkpoint files: written completely or not at all, and read without running code."""

import os
import re
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from amptui.base.runfiles import FOLDER_MODE, names_in, open_new, open_to_read, opened_folder
from amptui.checkpoint.shards import Shards, remove_shards, step_of_shards
from amptui.checkpoint.states import Part, load_plain, save_whole

FORMAT = 1
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
    """Of the other ranks from rank 1 on: their ``batches``, ``draws`` and ``epoch_draws``, and the number of
    their ``gpu``; empty for a single process."""
    added_groups: list[dict[str, bool]] = field(default_factory=list)
    """Parameter groups that the optimizer got while training: each parameter's name in the model, and whether
    it is trained."""
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
    with opened_folder(folder) as opened:
        for path in checkpoints(folder)[MAX_CHECKPOINTS:]:
            with suppress(FileNotFoundError):
                os.unlink(path.name, dir_fd=opened)
        _remove_lost_shards(opened)


def _remove_lost_shards(opened: int) -> None:
    """Remove the shards of all steps without a checkpoint."""
    names = os.listdir(opened)
    steps = {_step(name) for name in names if _NAME.fullmatch(name)}
    for name in names:
        step = step_of_shards(name)
        if step is not None and step not in steps:
            remove_shards(name, folder=opened)


def clear(folder: Path, *, after: int) -> None:
    """Remove unfinished files of a killed process, and set aside checkpoints after step ``after``.

    The run does not continue from those: they are damaged, or of another training.
    """
    with suppress(OSError), opened_folder(folder) as opened:
        _remove_lost_shards(opened)
        for name in os.listdir(opened):  # noqa: PTH208 - a descriptor, not a path
            with suppress(OSError):
                step = _step(name) if _NAME.fullmatch(name) else step_of_shards(name)
                if _NAME.fullmatch(name.removesuffix(WRITING)) and name.endswith(WRITING):
                    os.unlink(name, dir_fd=opened)
                elif step is not None and step > after:
                    os.replace(name, name + SET_ASIDE, src_dir_fd=opened, dst_dir_fd=opened)


def write(
    checkpoint: Checkpoint, folder: Path, *, before_it_counts: Callable[[], object] = lambda: None
) -> int:
    """Write ``checkpoint`` into ``folder``, which is created if missing; return its bytes with its shards.

    ``before_it_counts`` is called when the file is on the disk but has not got its name yet. If this raises,
    no file is left, nor are its shards, which have to be on the disk already.
    """
    folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
    name = checkpoint_name(checkpoint.step)
    unfinished = name + WRITING
    shards = checkpoint.shards
    content = {entry: getattr(checkpoint, entry) for entry in _ENTRIES}
    content["shards"] = shards.plain() if shards else None
    with opened_folder(folder) as opened:
        try:
            size_bytes = save_whole({"format": FORMAT, **content}, open_new(unfinished, folder=opened))
            before_it_counts()
            if shards:
                shards.check(checksums=False)
                size_bytes += sum(part_bytes for _, part_bytes, *_ in shards.files)
            os.replace(unfinished, name, src_dir_fd=opened, dst_dir_fd=opened)
        except BaseException:
            if shards:
                remove_shards(shards.folder.name, folder=opened)
            raise
        finally:
            with suppress(OSError):
                os.unlink(unfinished, dir_fd=opened)
        with suppress(OSError):  # not every file system can sync a folder
            os.fsync(opened)
        with suppress(OSError):
            for older in os.listdir(opened):  # noqa: PTH208 - a descriptor, not a path
                if step_of_shards(older) == checkpoint.step and not (shards and older == shards.folder.name):
                    remove_shards(older, folder=opened)
    return size_bytes


def read(path: Path, *, checksums: bool = True) -> Checkpoint:
    """The checkpoint in ``path``, with its own tensors in host memory. Raises DamagedError.

    Without ``checksums`` of its shards only their sizes are checked.
    """
    try:
        with opened_folder(path.parent) as folder, open_to_read(path.name, folder=folder) as file:
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
            content["shards"] = Shards.from_plain(plain, path.parent)
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
