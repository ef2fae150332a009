"""What the checks work with: scratch folder, data, device, the app in a terminal, and what they answer."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchvision.datasets import MNIST

from amptui.data.vision import MNIST_FOLDER
from amptui.records.run import Record, RunFailed, RunFinished
from tests.benchmarks.figures import Figure, table
from tests.benchmarks.lab import Lab, last_line
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

    def train(self, name: str, *options: str) -> list[Record]:
        """The records of a training without a screen, in a folder of that name."""
        run_dir = self.lab.folder / name
        command = amptui_command("train", *options, "--headless", "--device", self.device)
        last_line(self.lab.run([*command, "--run-dir", str(run_dir)]))
        return finished_run(run_dir)

    def wait_for(self, terminal: Terminal, pattern: str) -> str:
        """What matched ``pattern`` once it stood on the screen; fails when it never does."""
        return terminal.wait_for(pattern, seconds=self.lab.limit_seconds())[0]

    def quit(self, terminal: Terminal) -> int:
        """Stop the run from its screen; the exit status."""
        terminal.press("q")
        self.wait_for(terminal, "Stop it or detach")
        return terminal.leave("y")


@dataclass(frozen=True, slots=True)
class Check:
    run: Callable[[Bench], Found]
    needs_gpu: bool = True

    @property
    def name(self) -> str:
        return self.run.__name__

    @property
    def does(self) -> str:
        return " ".join((self.run.__doc__ or "").split())


def found_data(data_dir: Path | None, scratch: Path) -> Path | None:
    """MNIST's files laid out as amptui and torchvision want them, if ``data_dir`` holds all of them."""
    if data_dir is None:
        return None
    folder = scratch / "data" / MNIST_FOLDER
    folder.mkdir(parents=True)
    names = {name.removesuffix(".gz") for name, _ in MNIST.resources}
    for place in (data_dir / MNIST_FOLDER, data_dir):
        for name in names:
            for path in (place / name, place / f"{name}.gz"):
                if path.is_file() and not (folder / path.name).exists():
                    (folder / path.name).symlink_to(path.resolve())
    found = {path.name.removesuffix(".gz") for path in folder.iterdir()}
    return scratch / "data" if found == names else None


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
    """Steps whose numbers never reached the host."""
    return sum(step.step_seconds is None for step in of(StepRow, records))


def from_step(step: int) -> str:
    """A pattern for the screen's top line once it shows ``step``, a number of hundreds, or a later one."""
    return rf"{TOP_LINE}step +([{step // 100}-9]\d\d|\d+,\d{{3}})/"
