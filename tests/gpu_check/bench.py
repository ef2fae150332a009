"""What the checks work with: scratch folder, data, device, the app in a terminal, and what they answer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amptui.records.run import Record, RunFailed, RunFinished
from tests.benchmarks.figures import Figure, table
from tests.benchmarks.lab import Lab
from tests.benchmarks.side import write_stand_in
from tests.builders import StepRow, of, read
from tests.terminal import Terminal, amptui_command

TOP_LINE = r"\A.*"
"""Begins a pattern for the screen's first line, where the run's state and step are."""

Found = dict[str, Any]
"""What a check found, as JSON values; ``ok`` is false where it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    lab: Lab
    data_dir: Path | None
    """Where MNIST's files are, all four; None trains on synthetic images."""
    keep: Path | None
    """Where pictures and journals are kept."""
    device: str
    quick: bool

    @property
    def on_gpu(self) -> bool:
        """Whether there are numbers to be had that mean something."""
        return self.device == "cuda"

    @property
    def amp(self) -> str:
        return "fp16" if self.on_gpu else "bf16"

    @property
    def data_options(self) -> tuple[str, ...]:
        if self.data_dir is None:
            return ("--data", "synthetic")
        return ("--data", "real", "--data-dir", str(self.data_dir))

    def mnist_files(self) -> Path:
        """A folder below which torchvision finds MNIST, written once from synthetic images if need be."""
        if self.data_dir is not None:
            return self.data_dir
        root = self.lab.folder / "stand-in"
        if not root.exists():
            write_stand_in(root)
        return root

    def app(self, model: str, *options: str) -> Terminal:
        command = amptui_command("train", model, "--device", self.device, *options)
        return Terminal(command, env=self.lab.environment)

    def wait_for(self, terminal: Terminal, pattern: str) -> str:
        """What matched ``pattern`` once it stood on the screen; fails when it never does."""
        return terminal.wait_for(pattern, seconds=self.lab.limit_seconds())[0]

    def quit(self, terminal: Terminal) -> int:
        """Stop the run from its screen; the exit status."""
        terminal.press("q")
        self.wait_for(terminal, "Stop it or detach")
        return terminal.leave("y")


def judged(figures: Iterable[Figure], **more: Any) -> Found:
    """Figures as a check's answer: it failed if one missed its aim; one on a busy machine is not judged."""
    figures = list(figures)
    missed = [figure.name for figure in figures if figure.met is False]
    return {
        "ok": not missed,
        "missed": missed,
        "not_judged": [figure.name for figure in figures if figure.caveat and figure.aim is not None],
        "figures": [figure.as_json() for figure in figures],
        "told": table(figures).splitlines(),
        **more,
    }


def finished_run(run_dir: Path) -> list[Record]:
    """The records of a run that ended as asked; raises RuntimeError for any other."""
    records = list(read(run_dir / "journal.jsonl"))
    for failure in of(RunFailed, records):
        raise RuntimeError(f"the run failed: {failure.error}\n{failure.traceback}".strip())
    if not of(RunFinished, records):
        raise RuntimeError(f"the run never ended: {records[-1:]}")
    return records


def unmeasured(records: Sequence[Record]) -> int:
    return sum(step.step_seconds is None for step in of(StepRow, records))


def from_step(step: int) -> str:
    """A pattern for the screen's top line once it shows ``step``, a number of hundreds, or a later one."""
    return rf"{TOP_LINE}step +([{step // 100}-9]\d\d|\d+,\d{{3}})/"
