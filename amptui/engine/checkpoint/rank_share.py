"""What one rank takes of a checkpoint, which as many ranks may have written, or more, or fewer.

The global batch stays: each rank's part of it grows or shrinks. The position in the data, which is a position
in the order of a single process with the global batch, and the number of steps then mean the same.
"""

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from amptui.base.errors import UsageError
from amptui.device import accelerator
from amptui.engine.checkpoint.data_position import Start, random_states
from amptui.engine.checkpoint.file import Checkpoint, checkpoint_name
from amptui.engine.checkpoint.resume import Warn, restore
from amptui.engine.prepared import Prepared
from amptui.recipe.request import TrainRequest

_BATCH_SIZE = "batch_size"


def with_rank_batch(checkpoint: Checkpoint, ranks: int) -> Checkpoint:
    """``checkpoint`` with the batch size of each of ``ranks``, whose global batch is that of before.

    Raises UsageError if they cannot have equal parts of it.
    """
    before, batch_size = checkpoint.world_size, checkpoint.identity.get(_BATCH_SIZE)
    if before == ranks or not isinstance(batch_size, int):
        return checkpoint
    whole = batch_size * before
    if whole % ranks:
        what = f"{checkpoint_name(checkpoint.step)} has a global batch of {whole:,} samples"
        raise UsageError(
            f"{what}, which {ranks:,} ranks cannot share equally",
            hint=f"use --nproc {_next_divisor(whole, ranks)}",
        )
    return replace(checkpoint, identity={**checkpoint.identity, _BATCH_SIZE: whole // ranks})


def request_with_rank_batch(request: TrainRequest, checkpoint: Checkpoint, ranks: int) -> TrainRequest:
    """``request`` without a batch size of its own if one or both were of several ranks."""
    if checkpoint.world_size == ranks == 1:
        return request
    settings = {name: value for name, value in request.settings.items() if name != _BATCH_SIZE}
    return replace(request, batch_size=None, settings=settings)


def _of_rank(checkpoint: Checkpoint, rank: int, ranks: int, prepared: Prepared) -> Checkpoint:
    """``checkpoint`` with the random states of ``rank``: its own, or new ones if it had none.

    Raises UsageError for data whose order depends on how many ranks there are.
    """
    before = checkpoint.world_size
    if before != ranks and isinstance(prepared.data.train, DataLoader | IterableDataset):
        what = (
            f"{checkpoint_name(checkpoint.step)} was written with {before:,} ranks, and a DataLoader's order"
        )
        raise UsageError(f"{what} depends on their number", hint=f"resume with --nproc {before}")
    if rank == 0:
        return checkpoint
    if rank >= before:
        fresh = _fresh_states(prepared, checkpoint.step, rank)
        return replace(checkpoint, draws=fresh, epoch_draws=fresh)
    own = checkpoint.ranks[rank - 1]
    return replace(
        checkpoint,
        batches=own["batches"] if before == ranks else checkpoint.batches,
        draws=_on_device(own["draws"], own["gpu"], prepared.device),
        epoch_draws=_on_device(own["epoch_draws"], own["gpu"], prepared.device),
    )


def restore_rank(
    checkpoint: Checkpoint, rank: int, ranks: int, prepared: Prepared, warn: Warn
) -> tuple[Prepared, Start]:
    """``prepared`` with the checkpoint's states and precision, and where ``rank`` continues.

    Raises UsageError if the checkpoint is from another training, or cannot be shared out.
    """
    start = restore(_of_rank(checkpoint, rank, ranks, prepared), prepared, warn)
    precision = checkpoint.precision
    why = prepared.unsupported.get(precision) or prepared.precisions[precision].reason_not_to_enter()
    if why:
        warn(f"{precision} is not supported here: {why}; continuing in {prepared.precision}")
        precision = prepared.precision
    return replace(prepared, precision=precision), start


def rank_change(checkpoint: Checkpoint, ranks: int) -> str:
    """What is different with another number of ranks, in one line; empty with the same."""
    before, batch_size = checkpoint.world_size, checkpoint.identity.get(_BATCH_SIZE)
    if before == ranks:
        return ""
    part = f"{batch_size:,} samples per rank" if isinstance(batch_size, int) else "the same global batch"
    return (
        f"resumed with {ranks:,} instead of {before:,} ranks: {part}, the same global batch; "
        "random numbers differ from those of an uninterrupted run"
    )


def _next_divisor(whole: int, ranks: int) -> int:
    """The largest number below ``ranks`` that divides ``whole``."""
    return next(number for number in range(ranks - 1, 0, -1) if whole % number == 0)


def _on_device(draws: Mapping[str, Any], gpu: int, device: torch.device) -> dict[str, Any]:
    """The states with that of the rank's GPU, number ``gpu`` when saved, as that of the GPU it has now."""
    saved = draws["process"]["gpus"]
    gpus = list(accelerator.random_states(device))
    if not gpus or gpu >= len(saved):
        return dict(draws)
    gpus[device.index or 0] = saved[gpu]
    return {**draws, "process": {**draws["process"], "gpus": gpus}}


def _fresh_states(prepared: Prepared, step: int, rank: int) -> dict[str, Any]:
    """States that no other rank has, nor this one had at another step; seeds this process with them."""
    entropy = np.random.SeedSequence((prepared.request.seed % (1 << 64), step, rank))
    for_python, for_numpy, for_torch = entropy.generate_state(3, np.uint32).tolist()
    random.seed(for_python)
    np.random.seed(for_numpy)
    torch.manual_seed(for_torch)
    return random_states(prepared)
