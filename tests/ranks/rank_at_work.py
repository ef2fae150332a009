"""One rank of a real run over gloo, in a process of its own; tests start several.

``python -m tests.ranks.rank_at_work RANKS TASK OUT ARGUMENTS`` writes to ``OUT`` what each did.
"""

import json
import os
import pickle
import random
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from amptui.checkpoint.file import ShardFile, write_part
from amptui.checkpoint.states import Part
from amptui.ranks.agreement import checkpoints
from amptui.ranks.agreement.control import RankControl
from amptui.ranks.meter import RankNumbers
from amptui.ranks.thread import RankThread
from amptui.ranks.world import world_of
from amptui.recipe.request import TrainRequest, parse_model
from amptui.records.answers import RequestMade, RequestRefused, RequestTaken
from amptui.records.findings import ModulesTraced
from amptui.records.run import EpochFinished, PrecisionChanged, Record
from tests.builders import StepRow
from tests.ranks.recorded import STEPS, Recorded
from tests.tiny import Log, losses
from tests.warm import WarmSource

_STDERR = 2


@dataclass(slots=True)
class Ended:
    status: int
    steps: list[tuple[str, str]] = field(default_factory=list)
    """The precision of each, and a hash of the weights after it."""
    log: Log = field(default_factory=Log)
    error: str = ""
    rows: Sequence[RankNumbers] = ()
    """What it told rank 0 of itself."""

    @property
    def losses(self) -> list[float | None]:
        return losses(self.log)

    @property
    def validations(self) -> list[tuple[float | None, float | None, int]]:
        means = [epoch.validation for epoch in self.log.of(EpochFinished) if epoch.validation is not None]
        return [(mean.loss, mean.accuracy, mean.samples) for mean in means]

    @property
    def answers(self) -> list[tuple[type[Any], str]]:
        kinds = RequestTaken, RequestRefused
        return [(type(record), record.request.kind) for record in self.log if isinstance(record, kinds)]


Start = Callable[..., list[Ended]]
"""As the fixture ``start`` does it."""


def train_ranks(
    task: str,
    folder: Path,
    warm: WarmSource,
    *,
    count: int = 2,
    status: Any = 0,
    timeout: Any = 120,
    **arguments: Any,
) -> list[Ended]:
    """Start so many ranks, which do ``task`` with its ``arguments``; return how each ended.

    Fails if one ends with another ``status``, unless that is None, or not within ``timeout`` seconds.
    """
    words = [str(count), task, str(folder), json.dumps(arguments)]
    command = [sys.executable, "-m", "tests.ranks.rank_at_work", *words]
    with open(os.devnull) as nothing, TemporaryFile() as out:  # noqa: PTH123
        process = warm.start(command, nothing.fileno(), out.fileno(), _STDERR)
        try:
            process.wait(timeout)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        statuses = json.loads(out.read().splitlines()[-1])
    ended = []
    for rank, own_status in enumerate(statuses):
        path = folder / str(rank)
        done = pickle.loads(path.read_bytes()) if path.exists() else ()  # noqa: S301 - its own
        ended.append(Ended(own_status, *done))
    assert status is None or statuses == [status] * count, ended[0].error
    return ended


class Run:
    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str],
        model: str = "Recorded",
        device: str = "cpu",
        **options: Any,
    ) -> None:
        world = world_of(os.environ)
        assert world is not None, "the tests start several"
        self.world = world
        self.folder = folder
        self._came = threading.Condition()
        self.log = Log(watch=self._notify)
        request = TrainRequest(
            model="recorded",
            data_dir=folder,
            device=device,
            settings=settings,
            checkpoint_dir=folder / "checkpoints",
            nproc=world.size,
            **options,
        )
        spec = parse_model(f"{Recorded.__module__}:{model}")
        self.thread = RankThread(request, spec, self.log.emit, world)
        self.control = self.thread.control
        self.rows: list[RankNumbers] = []
        self._measure = self.control.measure
        self.control.measure = self._kept_numbers

    def _kept_numbers(self) -> RankNumbers:
        self.rows.append(self._measure())
        return self.rows[-1]

    def _notify(self, _record: Record) -> None:
        with self._came:
            self._came.notify_all()

    def wait_for(self, kind: type[Any], count: int = 1) -> None:
        with self._came:
            self._came.wait_for(lambda: len(self.log.of(kind)) >= count)

    def until_end(self) -> int:
        self.thread.join(1e6)
        return 0 if self.thread.error is None else self.thread.error.exit_status


def ask_at_random(control: RankControl, requests: int, seed: int) -> None:
    """Ask for so many random things at random moments, sometimes for two at once."""
    draw = random.Random(seed)
    kinds: Sequence[Callable[[], RequestMade]] = (
        *[lambda: RequestMade("precision", precision=draw.choice(("fp32", "bf16", "fp16")))] * 6,
        lambda: RequestMade("pause", paused=True),
        *[lambda: RequestMade("pause", paused=False)] * 3,
        lambda: RequestMade("checkpoint"),
        lambda: RequestMade("trace"),
        lambda: RequestMade("histogram"),
        lambda: RequestMade("comparison", precisions=("fp32", "bf16")),
        lambda: RequestMade("comparison"),
    )
    for _ in range(requests):
        control.ask(draw.choice(kinds)())
        if draw.random() < 0.9:
            time.sleep(draw.random() * 0.1)
    control.ask(RequestMade("pause", paused=False))


def _do(task: str, folder: Path, arguments: Mapping[str, Any]) -> int:
    run = TASKS[task](folder, **arguments)
    status = run.until_end()
    run.thread.close()
    run.log.watch = None
    limit_files()
    done = STEPS, run.log, str(run.thread.error or ""), run.rows
    (folder / str(run.world.rank)).write_bytes(pickle.dumps(done))
    return status


def _requests(folder: Path, *, requests: int, seed: int, fsdp: bool = False, **settings: str) -> Run:
    """Rank 0 is asked for random things, and then to stop."""
    return _with_requests(
        folder, lambda run: ask_at_random(run.control, requests, seed), options={"fsdp": fsdp}, **settings
    )


def _plain(
    folder: Path, *, model: str = "Recorded", options: Mapping[str, Any] | None = None, **settings: str
) -> Run:
    """Nobody asks for anything; ``options`` are those of the command line."""
    run = Run(folder, {"epochs": "2", **settings}, model, **(options or {}))
    run.thread.start()
    return run


def _without_gpu(folder: Path, *, rank: int) -> Run:
    """One rank is to train on a GPU, of which there is none."""
    return _plain(folder, options={"device": "cuda" if int(os.environ["RANK"]) == rank else "cpu"})


def _with_requests(
    folder: Path,
    ask: Callable[[Run], object],
    *,
    options: Mapping[str, Any] | None = None,
    slow_seconds: str = "0.001",
    **settings: str,
) -> Run:
    """Rank 0 is asked for things from its first step on, and then to stop."""
    run = Run(folder, {"slow_seconds": slow_seconds, **settings}, **(options or {}))
    random.seed(run.world.rank)
    run.thread.start()
    if run.world.leads:

        def ask_and_stop() -> None:
            run.wait_for(StepRow)
            ask(run)
            run.control.ask(RequestMade("stop", reason="the test"))

        threading.Thread(target=ask_and_stop, daemon=True).start()
    return run


Rounds = Sequence[tuple[Sequence[RequestMade], Sequence[type[Any]]]]
"""What rank 0 is asked for at once, and the records that are awaited then; one after the other."""

PROBES: Rounds = (
    *[((RequestMade("trace"),), (ModulesTraced,))] * 2,
    ((RequestMade("histogram"),), (RequestTaken,)),
)

FLOAT8: Rounds = [
    round_
    for precision in ("fp8", "fp32", "fp8", "bf16")
    for round_ in (
        ((RequestMade("precision", precision=precision),), (PrecisionChanged,)),
        ((), (StepRow,)),
    )
]


def _in_rounds(rounds: Rounds) -> Callable[..., Run]:
    """Rank 0 is asked for these things from its first step on, and then to stop."""

    def ask(run: Run) -> None:
        for requests, kinds in rounds:
            counts = [len(run.log.of(kind)) for kind in kinds]
            for request in requests:
                run.control.ask(request)
            for kind, count in zip(kinds, counts, strict=True):
                run.wait_for(kind, count + 1)

    return partial(_with_requests, ask=ask)


def limit_files(most_bytes: int | None = None) -> None:
    """Let this process write no file of more than that, or any."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if most_bytes is None else most_bytes, hard))


def die_at_second_part() -> None:
    """Kill this process when it has written half of its part of the second checkpoint."""
    written: list[ShardFile] = []

    def write_half(folder: Path, rank: int, parts: Sequence[Part]) -> ShardFile:
        written.append(write_part(folder, rank, parts[: len(parts) // 2] if written else parts))
        if len(written) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return written[0]

    checkpoints.write_part = write_half  # type: ignore[attr-defined]


def _in_trouble(folder: Path, *, trouble: Callable[[], object], **options: Any) -> Run:
    if os.environ["RANK"] == "1":
        trouble()
    return _plain(folder, options=options)


TASKS: dict[str, Callable[..., Run]] = {
    "requests": _requests,
    "plain": _plain,
    "without GPU": _without_gpu,
    "probed": _in_rounds(PROBES),
    "refused": _in_rounds([((RequestMade("x-ray"),), (RequestRefused,))]),
    "switched": _in_rounds([((RequestMade("precision", precision="bf16"),), (RequestRefused,))] * 2),
    "float8": _in_rounds(FLOAT8),
    "full disk": partial(_in_trouble, trouble=partial(limit_files, 1024)),
    "killed while writing": partial(_in_trouble, trouble=die_at_second_part),
}


_PORT_BYTES = 8


def _fork_rank(rank: int, ranks: int, port: int, work: Callable[[], int]) -> int:
    """Start one rank in a copy of this process, which has imported torch and no thread of its; its pid.

    It reads its port from the descriptor ``port``.
    """
    pid = os.fork()
    if pid:
        return pid
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks}
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": int(os.read(port, _PORT_BYTES))}
    torchrun = {"TORCHELASTIC_RUN_ID": "test", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    os.environ.update({name: str(value) for name, value in (place | master | torchrun).items()})
    torch.set_num_threads(1)
    try:
        status = work()
    except BaseException:  # noqa: BLE001 - a copy must not go on in the caller
        traceback.print_exc()
        status = 99
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _main(ranks: int, task: str, folder: Path, arguments: Mapping[str, Any]) -> None:
    work = partial(_do, task, folder, arguments)
    reading, writing = os.pipe()
    pids = [_fork_rank(rank, ranks, reading, work) for rank in range(ranks)]
    # As torchrun does it: the parent listens where the ranks meet, so that nobody else can take the port.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(writing, f"{store.port:<{_PORT_BYTES}}".encode() * ranks)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]))


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), json.loads(sys.argv[4]))
