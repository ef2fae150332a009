"""What agreement between ranks costs, and whether it holds: random requests, real ranks over gloo.

``python -m tests.benchmarks.ranks [--ranks 2] [--requests 1000] [--fsdp]`` prints a table. On two cores 1,000
requests take about two minutes.
"""

import argparse
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch

from amptui.ranks.numbers.own_checks import MIN_HASH_SECONDS, WEIGHTS_BUDGET, weights_hash
from tests.builders import StepRow
from tests.ranks.rank_at_work import Ended, train_ranks

LATE_SECONDS = 0.001
"""Boundaries that take longer than this waited for the thread, or measured."""


def table(ranks: list[Ended], seconds: float, *, fsdp: bool) -> list[tuple[str, str]]:
    """What happened, in rows of two cells."""
    first = ranks[0]
    named = [type(record).__name__ for record in first.log]
    precisions = [precision for precision, _ in first.steps]
    return [
        ("ranks", f"{len(ranks)}, {'FSDP2' if fsdp else 'DDP'}"),
        ("exit status of each", " ".join(str(each.status) for each in ranks)),
        ("requests made", f"{named.count('RequestMade'):,}"),
        ("taken", f"{named.count('RequestTaken'):,}"),
        ("refused, most of them overruled", f"{named.count('RequestRefused'):,}"),
        ("steps", f"{len(first.steps):,}"),
        ("switches", f"{sum(a != b for a, b in pairwise(precisions)):,}"),
        ("pauses", f"{named.count('PauseChanged') // 2:,}"),
        ("same precision in every step", _yes([_precisions(each) == precisions for each in ranks])),
        ("same weights after every step", _yes([each.steps == first.steps for each in ranks])),
        ("seconds", f"{seconds:.0f}"),
    ]


def cost(ended: Ended) -> list[tuple[str, str]]:
    """What the agreement costs rank 0 while nobody asks for anything."""
    boundaries = ended.boundary_seconds
    late = sum(each > LATE_SECONDS for each in boundaries)
    seconds = [step.step_seconds for step in ended.log.of(StepRow) if step.step_seconds is not None]
    a_step = sum(boundaries) / len(ended.steps)
    return [
        ("median step", f"{median(seconds) * 1e3:.1f} ms"),
        ("a boundary, median", f"{median(boundaries) * 1e6:.1f} us"),
        ("of each step, with rows of numbers", f"{a_step * 1e6:.0f} us, {a_step / median(seconds):.2%}"),
        (f"boundaries of more than {LATE_SECONDS * 1e3:.0f} ms", f"{late:,} of {len(boundaries):,}"),
    ]


HASHED_PARAMETERS = 25_000_000
"""As many as a ResNet-50 has."""


def hash_cost(ended: Ended) -> list[tuple[str, str]]:
    """What comparing the weights costs: hashes of a large model, as often as their budget allows."""
    drawn = torch.Generator().manual_seed(1)
    parameters = [torch.randn(1 << 20, generator=drawn) for _ in range(HASHED_PARAMETERS >> 20)]
    weights_hash(parameters)
    seconds = []
    for _ in range(10):
        began = time.perf_counter()
        weights_hash(parameters).item()
        seconds.append(time.perf_counter() - began)
    every = max(MIN_HASH_SECONDS, median(seconds) / WEIGHTS_BUDGET)
    return [
        ("hashes of the weights in these steps", f"{len({row.hashed_step for row in ended.rows}) - 1:,}"),
        (f"to hash {HASHED_PARAMETERS:,} parameters", f"{median(seconds) * 1e3:.1f} ms"),
        ("once in", f"{every:.1f} s"),
        ("of the time", f"{median(seconds) / every:.2%}"),
    ]


def _precisions(ended: Ended) -> list[str]:
    return [precision for precision, _ in ended.steps]


def _yes(all_ranks: list[bool]) -> str:
    return "yes" if all(all_ranks) else "NO"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fsdp", action="store_true", help="FSDP2 instead of DDP")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        arguments = {"requests": options.requests, "seed": options.seed, "fsdp": options.fsdp}
        arguments |= {"samples": "960"}
        request_ranks = train_ranks("requests", options.ranks, Path(folder), **arguments, timeout=1800)
    rows = table(request_ranks, time.monotonic() - began, fsdp=options.fsdp)
    with tempfile.TemporaryDirectory() as folder:
        arguments = {"samples": "9600", "epochs": "1", "slow_seconds": "0.005"}
        arguments |= {"options": {"fsdp": options.fsdp}}
        plain_ranks = train_ranks("plain", options.ranks, Path(folder), **arguments, timeout=600)
    rows += [*cost(plain_ranks[0]), *hash_cost(plain_ranks[0])]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:{width}}  {value}")


if __name__ == "__main__":
    main()
