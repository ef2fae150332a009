"""What is said of the ranks of a distributed run: their number, a slow one, lost ones, differing replicas."""

from amptui.base import units
from amptui.records.ranks import PHASE_WORDS, RankLost, RankPlace, RanksAwaited, RanksDisagree, StacksTaken
from amptui.records.run import RunStarted
from amptui.telemetry.rank_watch import RanksView
from amptui.telemetry.stragglers import MIN_SAMPLES, RankVerdict, SlowRankNews

_SHOWN_RANKS = 4
"""Ranks named in one line."""

_LOSSES = {
    "killed": "was killed",
    "hung": "hung",
    "out of memory": "ran out of memory",
    "failed": "failed",
}


_PARALLEL = {"ddp": "DDP", "fsdp": "FSDP", "fsdp2": "FSDP2", "hsdp": "HSDP", "tp": "TP", "pp": "PP"}


def size_words(world_size: int, run: RunStarted | None) -> str:
    """``8 ranks, DDP``; ``8 ranks, FSDP2 + TP, data parallel 4`` where some ranks share their samples."""
    ranks, how = f"{units.count(world_size)} ranks", parallel_words(run)
    data = None if run is None else run.data_parallel
    shared = f"data parallel {units.count(data)}" if data not in (None, world_size) else ""
    return ", ".join(filter(None, (ranks, how, shared)))


def parallel_words(run: RunStarted | None) -> str:
    """``FSDP2 + TP``; empty for a single process."""
    names = () if run is None else run.parallel.split("+")
    return " + ".join(_PARALLEL[name] for name in names if name in _PARALLEL)


def samples_each(samples_per_second: float, world_size: int, run: RunStarted | None) -> float:
    """What each rank takes of the samples of all; those of a tensor-parallel group take the same ones."""
    return samples_per_second / ((run.data_parallel if run is not None else None) or world_size)


def batch_words(run: RunStarted | None) -> str:
    """``global batch 2,048``; empty where it is not known."""
    size = None if run is None else run.global_batch_size
    return "" if size is None else f"global batch {units.count(size)}"


def run_words(run: RunStarted) -> str:
    """``, 8 ranks, DDP, global batch 2,048``; empty for a single process."""
    if run.world_size <= 1:
        return ""
    batch = batch_words(run)
    return f", {size_words(run.world_size, run)}{f', {batch}' if batch else ''}"


def place_words(place: RankPlace | None, *, with_host: bool = True) -> str:
    """``node-1 cuda:5``; empty where it is not known."""
    if place is None:
        return ""
    return f"{place.host} {place.device}" if with_host else place.device


def speed_sentence(ranks: RanksView, run: RunStarted | None) -> str:
    """Which rank is slow and what its numbers show, or that none is; empty as long as that is not known."""
    verdict = ranks.straggler
    if verdict is not None:
        place = next((row.place for row in ranks.rows if row.rank == verdict.rank), None)
        return _slow(verdict, place)
    if ranks.samples < MIN_SAMPLES:
        return ""
    if run is not None and run.parallel not in ("", "ddp"):
        hides = f"{parallel_words(run)} hides which rank computes slowly"
        return f"data wait and clocks are the same on all ranks; {hides}"
    return "no rank is slower than the others"


def slow_rank(news: SlowRankNews) -> str:
    """Which rank is slow and what its numbers show; or that none is any more."""
    if news.verdict is None:
        return "the ranks are equally fast again"
    return _slow(news.verdict, news.place)


def _slow(verdict: RankVerdict, place: RankPlace | None) -> str:
    where = f" ({place_words(place)})" if place is not None else ""
    return f"rank {verdict.rank}{where} is slow: {slow_because(verdict)}"


def slow_because(verdict: RankVerdict) -> str:
    """``forward and backward take 12.7 ms, 9.61 ms on the other ranks``."""
    took = units.milliseconds(verdict.seconds), units.milliseconds(verdict.others_seconds)
    if verdict.cause == "input":
        return f"it waits {took[0]} for data, the other ranks {took[1]}"
    if verdict.cause == "compute":
        return f"forward and backward take {took[0]}, {took[1]} on the other ranks"
    others = verdict.others_clock_mhz
    of = "" if others is None else f"of {units.megahertz(others)} "
    clock = f"clock held at {units.count(round(verdict.clock_mhz or 0))} {of}by {', '.join(verdict.reasons)}"
    return clock if verdict.seconds is None else f"{clock}; compute {took[0]}, others {took[1]}"


def slow_in_short(verdict: RankVerdict) -> str:
    """``rank 5 slow: compute 12.7 ms, others 9.61 ms``."""
    took = units.milliseconds(verdict.seconds), units.milliseconds(verdict.others_seconds)
    if verdict.cause == "clocks":
        took = units.megahertz(verdict.clock_mhz), units.megahertz(verdict.others_clock_mhz)
    what = {"input": "data wait", "compute": "compute", "clocks": "clock"}[verdict.cause]
    return f"rank {verdict.rank} slow: {what} {took[0]}, others {took[1]}"


def ranks_disagree(record: RanksDisagree) -> str:
    """``replicas disagree: rank 3 has loss scale 32,768, the others 65,536``; or that they agree again."""
    if record.count <= 0:
        what = "the weights' hash" if record.what == "weights" else record.what
        return f"replicas agree again: {what}"
    who = _ranks([other.rank for other in record.others], record.count)
    if record.what == "weights":
        difference = f"the weights of {who} differ from the others'"
    elif record.what == "loss scale":
        values = {other.value for other in record.others}
        theirs = f"loss scale {units.count(values.pop())}" if len(values) == 1 else "other loss scales"
        has = "has" if record.count == 1 else "have"
        difference = f"{who} {has} {theirs}, the others {units.count(record.most)}"
    elif record.most:
        difference = f"{who} found no Inf and applied a step that the others skipped"
    else:
        difference = f"{who} found Inf and skipped a step that the others applied"
    return f"replicas disagree: {difference}"


def rank_lost(record: RankLost) -> str:
    """``rank 5 on node-2 was killed: signal 9``."""
    detail = " ".join(record.detail.split())
    where = f" on {record.host}" if record.host else ""
    text = f"rank {record.rank}{where} {_LOSSES[record.cause]}"
    return f"{text}: {detail}" if detail else text


def ranks_awaited(record: RanksAwaited) -> str:
    """``rank 1 makes the others wait: in after_step() for 34 s``; or that it no longer does."""
    who, seconds = _ranks(list(record.ranks), record.count), units.duration(record.seconds)
    verb = "made" if record.over else "makes" if record.count == 1 else "make"
    return f"{who} {verb} the others wait: {PHASE_WORDS[record.phase]} for {seconds}"


def stacks_taken(record: StacksTaken) -> str:
    """``no progress: stacks of 2 ranks``; which ranks do not answer."""
    text = f"no progress: stacks of {units.counted(len(record.stacks), 'rank')}"
    silent = f"; {_ranks(list(record.silent), len(record.silent))} did not answer" if record.silent else ""
    return text + silent


def stack_lines(record: StacksTaken) -> list[str]:
    """Rank by rank what each was doing, and its stack."""
    lines = []
    for stack in record.stacks:
        lines.append(f"rank {stack.rank}, {PHASE_WORDS[stack.phase]}, step {units.count(stack.step)}")
        lines.extend(stack.stack.splitlines())
    return lines


def _ranks(ranks: list[int], count: int) -> str:
    """``rank 3``, ``ranks 1, 2`` or ``12 ranks (1, 2, 5, 6, ...)``."""
    if count == 1 and ranks:
        return f"rank {ranks[0]}"
    first_ranks = ", ".join(map(str, ranks[:_SHOWN_RANKS]))
    if count <= min(len(ranks), _SHOWN_RANKS):
        return f"ranks {first_ranks}"
    return f"{units.count(count)} ranks ({first_ranks}, ...)"
