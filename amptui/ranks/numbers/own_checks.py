"""What a rank finds in its own numbers: losses that were not finite, and a hash of its weights.

DDP averages gradients before anybody checks them: one rank's NaN reaches all. The rank's own loss tells at no
cost, since it stays on the device and is looked at only after trouble. Hashes show replicas whose weights are
no longer the same.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from time import perf_counter

import torch
from torch import Tensor

from amptui.device.accelerator import capabilities
from amptui.device.readback import open_readback
from amptui.probes.gradients import together
from amptui.probes.probe import Cadence

_KEPT_STEPS = 512
"""More than are in flight between the host and the device."""

_KEPT_BAD_STEPS = 128

WEIGHTS_BUDGET = 0.0005
"""The fraction of rank 0's time that hashes may take: 5 us of a step of 10 ms."""

MIN_HASH_SECONDS = 1.0
"""The time from one hash to the next at least: replicas that differ stay different."""

_HASHES_IN_FLIGHT = 4

_PART_BITS = 24
"""A hash arrives in two float32, each of which holds so many bits."""

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
"""An odd factor that moves each bit of a hash to its upper ones, which are told."""


class OwnLosses:
    """Keeps a rank's losses of its last steps on the device, and reads one after trouble.

    Of the trainer's thread: :meth:`keep` after each ``step``, :meth:`judge` when the numbers of a step have
    arrived and show trouble, so that nobody has to wait for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._reads_beside = capabilities(device).side_streams
        self._side_stream: torch.Stream | None = None
        self._losses: deque[tuple[int, Tensor]] = deque(maxlen=_KEPT_STEPS)
        self.step = self.judged_step = 0
        """The step that is made, and the newest that was judged."""
        self.bad_steps: deque[int] = deque(maxlen=_KEPT_BAD_STEPS)
        """The newest in which it was NaN or Inf."""
        self.bad_count: int | None = None
        """How many those were; None before a step was judged."""

    def keep(self, loss: Tensor) -> None:
        """The step was sent to the device; ``loss`` is the rank's own."""
        self._losses.append((self.step, loss.detach()))

    def judge(self, step: int) -> None:
        """Find out whether the trouble of ``step`` was in this rank's loss; its numbers have arrived."""
        loss = next((loss for at, loss in reversed(self._losses) if at == step), None)
        if loss is None or step <= self.judged_step:
            return
        self.judged_step, self.bad_count = step, self.bad_count or 0
        if not math.isfinite(self._read(loss)):
            self.bad_count += 1
            self.bad_steps.append(step)

    def _read(self, value: Tensor) -> float:
        """A value that the device has computed already: the work of later steps is not waited for."""
        if value.is_cpu or not self._reads_beside:
            return float(value.item())
        if self._side_stream is None:
            self._side_stream = torch.Stream(self._device)
        with self._side_stream:
            return float(value.item())


@torch.no_grad()
def weights_hash(parameters: Iterable[Tensor]) -> Tensor:
    """[] int64: the bits of each of ``parameters`` xored, added up; the host does not wait for the device.

    Replicas that drift apart differ in many bits. That of values which change places is the same.
    """
    values = [torch.view_as_real(p.resolve_conj()) if p.is_complex() else p for p in parameters]
    hashes = [torch.hash_tensor(value).view(torch.int64) for value in values if value.numel()]
    if not hashes:
        return torch.zeros((), dtype=torch.int64, device="cpu")
    column = torch.stack(together(hashes, hashes[0].device))
    return (column * (torch.arange(1, 2 * len(column), 2, device=column.device) * _GOLDEN)).sum()


class WeightsCheck:
    """One rank's part in comparing weights: hashes them when rank 0 asks, and tells the result later.

    Used by the trainer's thread, which never waits for the device. ``leads``: this is rank 0, which asks as
    often as ``WEIGHTS_BUDGET`` allows.
    """

    def __init__(self, parameters: Sequence[Tensor], device: torch.device, *, leads: bool) -> None:
        self._parameters = parameters
        self._leads = leads
        self._cadence = Cadence(WEIGHTS_BUDGET)
        self._is_asking = False
        self._asked_at = -MIN_HASH_SECONDS
        self._readback = open_readback(device, clock=perf_counter, capacity=_HASHES_IN_FLIGHT)
        self._newest: tuple[int, float | None] = -1, None

    def hash(self, step: int) -> None:
        """Hash the weights after ``step``, as all ranks do now."""

        def deliver(values: Sequence[float] | None, seconds: float | None) -> None:
            self._cadence.charge(seconds)
            self._newest = step, None if values is None else values[0] * (1 << _PART_BITS) + values[1]

        self._is_asking = False
        self._cadence.begin()
        try:
            self._readback.begin_interval()
            hashed = weights_hash(self._parameters)
            parts = [hashed >> 64 - bits & (1 << _PART_BITS) - 1 for bits in (_PART_BITS, 2 * _PART_BITS)]
            self._readback.push(parts, deliver, timed=True)
        except (torch.OutOfMemoryError, NotImplementedError):  # of a dtype or device: no reason to end a run
            deliver(None, None)

    def newest(self) -> tuple[int, float | None]:
        """The step after which the newest hash was computed, and 48 bits of it, which a float64 holds.

        The step is -1 before the first; the hash is None without one, for lack of memory too.
        """
        self._readback.drain()
        return self._newest

    def is_due(self) -> bool:
        """Of rank 0: whether all should hash their weights now; true once for each hash."""
        now = perf_counter()
        idle = self._leads and not self._is_asking
        if not (idle and now - self._asked_at >= MIN_HASH_SECONDS and self._cadence.due()):
            return False
        self._is_asking, self._asked_at = True, now
        return True
