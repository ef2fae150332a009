"""One rank of a real run over gloo, in a process of its own; tests and a benchmark start several.

``python -m tests.ranks.rank_at_work RANKS TASK OUT ARGUMENTS`` writes to ``OUT`` what each did.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from amptui.engine.trainer import Trainer
from amptui.ranks.agreement.control import RankControl
from amptui.ranks.agreement.rows import RankNumbers
from amptui.ranks.launchers import world_of
from amptui.ranks.thread import RankThread
from amptui.recipe.modelspec import parse_model
from amptui.recipe.request import TrainRequest
from amptui.records.answers import RequestRefused, RequestTaken
from amptui.records.control import (
    CheckpointRequest,
    ComparisonRequest,
    HistogramRequest,
    PauseRequest,
    PrecisionRequest,
    Request,
    StopRequest,
    TraceRequest,
    XRayRequest,
)
from amptui.records.findings import Float16Window, ModulesTraced, XRayTaken
from amptui.records.keeping import CheckpointWritten, KeepingChanged
from amptui.records.ranks import RanksDisagree, RanksOverflowed
from amptui.records.run import EpochFinished, Note, Record, StepSkipped
from amptui.records.steps import StepRecord
from tests.ranks.hindered_writing import (
    COUNTED,
    count_collectives,
    die_at_second_part,
    empty_disk,
    fill_disk,
)
from tests.ranks.recorded import COMPILED, STEPS, Recorded
from tests.single_steps import one_by_one


@dataclass(frozen=True, slots=True)
class Ended:
    """How one rank ended."""

    status: int
    steps: list[tuple[str, str]]
    found: dict[str, Any]


def train_ranks(
    task: str, ranks: int, folder: Path, *, arguments: Mapping[str, Any] | None = None, timeout: float = 120
) -> list[Ended]:
    """Start so many ranks, which do ``task`` with its ``arguments``; return how each ended."""
    module = "tests.ranks.rank_at_work"
    told = [str(ranks), task, str(folder), json.dumps(dict(arguments or {}))]
    with subprocess.Popen(
        [sys.executable, "-m", module, *told], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            statuses = json.loads(process.communicate(timeout=timeout)[0].splitlines()[-1])
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return [_read(folder / f"{rank}.json", status) for rank, status in enumerate(statuses)]


def _read(path: Path, status: int) -> Ended:
    written = json.loads(path.read_text()) if path.exists() else {"steps": [], "found": {}}
    return Ended(status, [(precision, weights) for precision, weights in written["steps"]], written["found"])


class MeasuredControl(RankControl):
    """Measures what the agreement costs the training."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.boundary_seconds: list[float] = []
        self.own_numbers: list[RankNumbers] = []
        self.thread_seconds = 0.0
        """The CPU time of the thread that talks, once that has ended."""

    def join(self, *given: Any) -> None:
        measure = self.measure

        def kept() -> RankNumbers:
            self.own_numbers.append(measure())
            return self.own_numbers[-1]

        self.measure = kept
        super().join(*given)

    def _talk(self, *given: Any) -> None:
        try:
            super()._talk(*given)
        finally:
            self.thread_seconds = time.thread_time()

    def at_boundary(self, *, validating: bool = False) -> None:
        began = time.perf_counter()
        super().at_boundary(validating=validating)
        self.boundary_seconds.append(time.perf_counter() - began)


class Run:
    """This process's rank."""

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
        self.records: list[Record] = []
        self._came = threading.Condition()
        self.control = MeasuredControl(world, self._take)
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
        self.thread = RankThread(request, spec, self.control, self._take, world)

    def _take(self, record: Record) -> None:
        with self._came:
            self.records += one_by_one([record])
            self._came.notify_all()

    def wait_for(self, kind: type[Any], count: int = 1) -> None:
        """Wait for so many records of that type."""
        with self._came:
            self._came.wait_for(lambda: sum(isinstance(each, kind) for each in self.records) >= count)

    def until_end(self) -> int:
        """Wait for the end; return the exit status."""
        self.thread.join(1e6)
        return 0 if self.thread.error is None else self.thread.error.exit_status


def ask_at_random(control: RankControl, requests: int, seed: int) -> None:
    """Ask for so many random things at random moments, sometimes for two at once."""
    draw = random.Random(seed)
    kinds: Sequence[Callable[[], Request]] = (
        *[lambda: PrecisionRequest(draw.choice(("fp32", "bf16", "fp16")))] * 6,
        lambda: PauseRequest(True),
        *[lambda: PauseRequest(False)] * 3,
        CheckpointRequest,
        TraceRequest,
        HistogramRequest,
        XRayRequest,
        lambda: ComparisonRequest(("fp32", "bf16")),
        ComparisonRequest,
    )
    for _ in range(requests):
        control.ask(draw.choice(kinds)())
        if draw.random() < 0.9:
            time.sleep(draw.random() * 0.1)
    control.ask(PauseRequest(False))


def _do(task: str, folder: Path, arguments: Mapping[str, Any]) -> int:
    run = TASKS[task](folder, **arguments)
    status, told = run.until_end(), run.control.own_numbers
    run.thread.close()
    found = {
        "records": [type(record).__name__ for record in run.records],
        "losses": [record.loss for record in run.records if isinstance(record, StepRecord)],
        "samples": [record.samples for record in run.records if isinstance(record, StepRecord)],
        "micro_batches": [record.micro_batches for record in run.records if isinstance(record, StepRecord)],
        "skips": [record.step for record in run.records if isinstance(record, StepRecord) and record.skipped],
        "norms": {
            record.step: (record.grad_norm, record.nonfinite_gradients)
            for record in run.records
            if isinstance(record, StepRecord) and record.grad_norm is not None
        },
        "windows": [
            (record.elements, record.nonfinite, sum(record.counts) + record.zeros)
            for record in run.records
            if isinstance(record, Float16Window)
        ],
        "step_seconds": [record.step_seconds for record in run.records if isinstance(record, StepRecord)],
        "validations": [
            (record.validation.loss, record.validation.accuracy, record.validation.samples)
            for record in run.records
            if isinstance(record, EpochFinished) and record.validation is not None
        ],
        "answers": [
            (type(record).__name__, record.request.kind)
            for record in run.records
            if isinstance(record, RequestTaken | RequestRefused)
        ],
        "compiled": COMPILED,
        "collectives": COUNTED,
        "troubles": [each.trouble for each in run.records if isinstance(each, KeepingChanged)],
        "refusals": [record.detail for record in run.records if isinstance(record, RequestRefused)],
        "checkpoints": [record.step for record in run.records if isinstance(record, CheckpointWritten)],
        "error": str(run.thread.error or ""),
        "boundary_seconds": run.control.boundary_seconds,
        "thread_seconds": run.control.thread_seconds,
        "hashed_steps": sorted({each.hashed_step for each in told}),
        "notes": [each.text for each in run.records if isinstance(each, Note)],
        "overflowed": [(each.step, each.ranks) for each in run.records if isinstance(each, RanksOverflowed)],
        "skipped": [each.step for each in run.records if isinstance(each, StepSkipped)],
        "compute": [each.compute_seconds for each in told],
        "own_overflows": next((each.overflowed for each in reversed(told)), None),
        "disagreements": [
            (record.what, record.step, record.count, [each.rank for each in record.others])
            for record in run.records
            if isinstance(record, RanksDisagree)
        ],
    }
    empty_disk()
    (folder / f"{run.world.rank}.json").write_text(json.dumps({"steps": STEPS, "found": found}))
    return status


def _requests(folder: Path, *, requests: int, seed: int, fsdp: bool = False, **settings: str) -> Run:
    """Rank 0 is asked for random things, and then to stop."""
    run = Run(folder, {"slow_seconds": "0.001", **settings}, fsdp=fsdp)
    random.seed(run.world.rank)
    run.thread.start()
    if run.world.leads:

        def ask() -> None:
            run.wait_for(StepRecord)
            ask_at_random(run.control, requests, seed)
            run.control.ask(StopRequest("the test"))

        threading.Thread(target=ask, daemon=True).start()
    return run


def _plain(folder: Path, *, options: Mapping[str, Any] | None = None, **settings: str) -> Run:
    """Nobody asks for anything; ``options`` are those of the command line."""
    run = Run(folder, {"epochs": "2", **settings}, **(options or {}))
    run.thread.start()
    return run


def _without_gpu(folder: Path, *, rank: int) -> Run:
    """One rank is to train on a GPU, of which there is none."""
    device = "cuda" if int(os.environ["RANK"]) == rank else "cpu"
    run = Run(folder, {"epochs": "2"}, device=device)
    run.thread.start()
    return run


def _asked(folder: Path, ask: Callable[[Run], object], *, options: Mapping[str, Any], **settings: str) -> Run:
    """Rank 0 is asked for things from its first step on, and then to stop."""
    run = Run(folder, settings, **options)
    run.thread.start()
    if run.world.leads:

        def ask_and_stop() -> None:
            run.wait_for(StepRecord)
            ask(run)
            run.control.ask(StopRequest("the test"))

        threading.Thread(target=ask_and_stop, daemon=True).start()
    return run


def _probe(run: Run) -> None:
    """An X-ray and a trace, and again when both are there."""
    for count in (1, 2):
        run.control.ask(XRayRequest())
        run.control.ask(TraceRequest())
        run.wait_for(XRayTaken, count)
        run.wait_for(ModulesTraced, count)
    run.control.ask(HistogramRequest())
    run.wait_for(RequestTaken, 5)


def _xray_in_vain(run: Run) -> None:
    run.control.ask(XRayRequest())
    run.wait_for(RequestRefused)


def _switch_in_vain(run: Run) -> None:
    """bf16, twice."""
    for count in (1, 2):
        run.control.ask(PrecisionRequest("bf16"))
        run.wait_for(RequestRefused, count)


def _validate_in_each(run: Run) -> None:
    """bf16 and fp32, each before a validation."""
    run.wait_for(EpochFinished)
    for precision in ("bf16", "fp32"):
        before = sum(isinstance(each, EpochFinished) for each in run.records)
        run.control.ask(PrecisionRequest(precision))
        run.wait_for(EpochFinished, before + 2)


def _with_full_disk(folder: Path, **options: Any) -> Run:
    """Rank 1 cannot write its checkpoints; how many collectives those and its steps begin is counted."""
    count_collectives(Trainer, "_write_checkpoint")
    count_collectives(Recorded, "after_step")
    if os.environ["RANK"] == "1":
        fill_disk()
    return _with_options(folder, model="Recorded", settings={}, **options)


def _killed_while_writing(folder: Path, **options: Any) -> Run:
    """Rank 1 is killed when it has written half of its second checkpoint."""
    if os.environ["RANK"] == "1":
        die_at_second_part()
    return _with_options(folder, model="Recorded", settings={}, **options)


def _with_options(folder: Path, *, model: str, settings: Mapping[str, str], **options: Any) -> Run:
    """``options`` are the request's."""
    run = Run(folder, {"epochs": "2", **settings}, model, **options)
    run.thread.start()
    return run


TASKS: dict[str, Callable[..., Run]] = {
    "requests": _requests,
    "plain": _plain,
    "without GPU": _without_gpu,
    "probed": partial(_asked, ask=_probe, options={}, slow_seconds="0.001"),
    "refused": partial(_asked, ask=_xray_in_vain, options={}, slow_seconds="0.001"),
    "switched": partial(_asked, ask=_switch_in_vain, options={}, slow_seconds="0.001"),
    "compiled": partial(_asked, ask=_validate_in_each, options={"compile_mode": "default"}),
    "asked": _with_options,
    "full disk": _with_full_disk,
    "killed while writing": _killed_while_writing,
}


_PORT_BYTES = 8


def _fork_rank(rank: int, ranks: int, port: int, work: Callable[[], int]) -> int:
    """Start one rank in a copy of this process, which has imported torch and computed nothing; its pid.

    It reads its port from the descriptor ``port``.
    """
    pid = os.fork()
    if pid:
        return pid
    told = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": ranks,
        "MASTER_PORT": int(os.read(port, _PORT_BYTES)),
    }
    os.environ.update({name: str(value) for name, value in told.items()})
    os.environ.update({"TORCHELASTIC_RUN_ID": "test", "MASTER_ADDR": "127.0.0.1"})
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
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
