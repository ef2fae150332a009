"""Records of requests to a run and of its answers."""

import os
import time
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

RequestKind = Literal["precision", "pause", "x-ray", "trace", "histogram", "comparison", "checkpoint", "stop"]

REQUEST_KINDS: frozenset[RequestKind] = frozenset(get_args(RequestKind))

Refusal = Literal["overruled", "unavailable", "comparison running", "failed"]
"""A later request asked for something else; this run cannot do it; a comparison has to end first; it was
tried and failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMade:
    """Somebody asks for something. It is pending until its one answer comes, a stop until the run ends."""

    time: float = field(default_factory=time.time)
    number: int = field(default_factory=lambda: int.from_bytes(os.urandom(6), "big"))
    """Drawn at random by whoever asks, who knows the answer by it; Python's generator is the training's."""
    kind: RequestKind = field(kw_only=False)
    precision: str | None = None
    """What ``precision`` asks for."""
    precisions: tuple[str, ...] = ()
    """What ``comparison`` alternates between, the baseline first; without any it ends the one that runs."""
    paused: bool | None = None
    """Whether ``pause`` asks to pause or to resume."""
    reason: str = ""
    """Why ``stop`` asks for the end."""
    at_once: bool = False
    """Whether ``stop`` does not wait for the end of the current step."""

    def asks_the_same(self, other: "RequestMade") -> bool:
        """Whether both ask for the same, whoever asks and when."""
        return self == replace(other, time=self.time, number=self.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTaken:
    """What was asked for is done.

    A step ran in the precision, the checkpoint is on the disk, the X-ray, the trace or the float16
    histogram was told, the
    comparison has begun or ended, the run stands still or goes on.
    """

    time: float
    step: int
    """The last one when the trainer last looked."""
    request: RequestMade


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRefused:
    """What was asked for will not be done."""

    time: float
    step: int
    """The last one when the trainer last looked."""
    request: RequestMade
    reason: Refusal
    detail: str = ""
    """Why it is unavailable, or the error that it failed with, in one line."""


Answer = RequestTaken | RequestRefused
