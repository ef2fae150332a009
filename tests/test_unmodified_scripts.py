"""`amptui run --observe`: scripts that know nothing of amptui do and leave behind what they do without it."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from amptui.guest.run_script import NO_STEP
from amptui.records.run import Record, RunFailed, RunStarted
from tests.builders import StepRow, of, read
from tests.terminal import amptui_command

LOOP = """
import os, random, signal, sys, traceback
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, inputs):
        return self.second(self.first(inputs).relu())

def train(steps=8, after=lambda step: None, quiet=False):
    random.seed(0)
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=3)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        inputs, labels = torch.randn(8, 16), torch.randint(4, (8,))
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(inputs * (1e6 if step in (1, 5) else 1)), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        if not quiet:
            print(f"\\r{step}/{steps}", end="", file=sys.stderr, flush=True)
            print(repr(loss.item()), scaler.get_scale())
        after(step)
    return model
"""

FACTS = """
import argparse, gc, os, signal, sys, threading, warnings
import __main__
print(__name__, __file__, __package__, __spec__ and __spec__.name, type(__loader__).__name__)
print(sys.argv, sys.orig_argv[1:], sys.path, sys.flags, sorted(vars(__main__)))
print(sorted(os.environ.items()))
print(gc.get_threshold(), gc.isenabled(), sys.getswitchinterval(), threading.active_count())
print(warnings.filters, sys.excepthook is sys.__excepthook__, sys.gettrace(), "sitecustomize" in sys.modules)
print([signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)])
print(os.popen(f"{sys.executable} -c 'import os, sys; print(sorted(os.environ), sys.path)'").read())
name = input("your name? ")
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
print(name, parser.parse_args())
"""


@dataclass(frozen=True)
class Done:
    status: int
    output: str
    errors: str
    files: Mapping[str, bytes]


def outcome(command: Sequence[str], folder: Path, stdin: str) -> Done:
    paths_before = {path for path in folder.iterdir() if path.is_file()}
    of_tests = ("PYTHON", "PYTEST", "AMPTUI")
    env = {name: value for name, value in os.environ.items() if not name.startswith(of_tests)}
    result = subprocess.run(
        [*command], cwd=folder, env=env, input=stdin, capture_output=True, text=True, check=False, timeout=300
    )
    new = {path for path in folder.iterdir() if path.is_file() and path not in paths_before}
    files = {path.name: path.read_bytes() for path in new}
    for path in new:
        path.unlink()
    return Done(result.returncode, result.stdout, result.stderr, files)


def same_outcome(folder: Path, *command: str, stdin: str = "") -> tuple[Done, list[Record]]:
    """Runs a script without and with us, holds the two to each other, and reads what was recorded."""
    bare = outcome([sys.executable, *command], folder, stdin)
    run = folder.parent / "run"
    start = amptui_command("run", "--observe", "--headless", "--run-dir", str(run))
    ours = outcome([*start, *command], folder, stdin)
    first, _, errors = ours.errors.partition("\n")
    assert first == f"amptui: recording {run}"
    path = run / "journal.jsonl"
    journal = list(read(path)) if path.exists() else []
    if not path.exists():
        bare = Done(bare.status, bare.output, f"{bare.errors}amptui: {NO_STEP}\n", bare.files)
    assert errors[: len(bare.errors)] == bare.errors
    status = bare.status if bare.status >= 0 else 128 - bare.status
    assert (ours.status, ours.output, ours.files) == (status, bare.output, bare.files)
    return ours, journal


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "loop.py").write_text(LOOP)
    return folder


def script(folder: Path, text: str) -> str:
    """A script that has the loop in itself, below ``if __name__ == "__main__"``."""
    main = 'if __name__ == "__main__":\n' + textwrap.indent(textwrap.dedent(text), "    ")
    (folder / "train.py").write_text(LOOP + main)
    return "train.py"


@pytest.mark.ci
@pytest.mark.parametrize("way", ["file", "module"])
def test_a_script_is_started_as_python_starts_it(way: str, folder: Path) -> None:
    package = folder / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "near.py").write_text("here = __name__")
    (package / "facts.py").write_text(f"from .near import here\nprint(here)\n{FACTS}")
    (folder / "facts.py").write_text(FACTS)
    start = {"file": "facts.py", "module": "-m package.facts"}[way]
    result, journal = same_outcome(folder, *start.split(), "--lr", "0.5", stdin="Ada\n")
    assert (result.status, journal) == (0, [])
    assert "Ada Namespace(lr=0.5)" in result.output


@pytest.mark.ci
def test_a_sitecustomize_of_ones_own_still_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "sitecustomize.py").write_text("import sys\nsys.mine = __name__, __file__\n")
    (folder / "facts.py").write_text(f"import os, sys\nprint(sys.mine, os.environ['PYTHONPATH'])\n{FACTS}")
    env = {**os.environ, "PYTHONPATH": str(folder)}
    commands = ([sys.executable, "facts.py"], amptui_command("run", "--observe", "--headless", "facts.py"))
    outputs = [
        subprocess.run(command, cwd=folder, env=env, input=b"A\n", capture_output=True, check=True).stdout
        for command in commands
    ]
    assert outputs[0] == outputs[1]
    assert b"sitecustomize" in outputs[0]


@pytest.mark.torch
@pytest.mark.ci
def test_an_unmodified_loop_is_seen_from_its_first_step_on_and_does_what_it_did(folder: Path) -> None:
    text = """
        model = train()
        try:
            torch.ones(3, requires_grad=True).backward()
        except RuntimeError:
            traceback.print_exc()
        print(random.random(), torch.rand(1), torch.get_num_threads(), sys.argv)
        torch.save(model, "model.pt")
        torch.save(model.state_dict(), "weights.pt")
        sys.exit(3)
    """
    result, journal = same_outcome(folder, script(folder, text), "--lr", "1")
    assert result.status == 3
    assert result.files.keys() == {"model.pt", "weights.pt"}
    printed = [line.split() for line in result.output.splitlines()[:8]]
    steps = of(StepRow, journal)
    assert [record.step for record in steps] == list(range(1, 9))
    assert [str(record.loss) for record in steps] == [loss for loss, _ in printed]
    assert [record.loss_scale for record in steps] == [2.0**16, *(float(scale) for _, scale in printed[:-1])]
    assert [record.step for record in steps if record.skipped] == [1, 5]
    assert {record.precision for record in steps} == {"fp16"}
    assert [record.step for record in steps if record.step_seconds is None] == [1]
    (started,) = of(RunStarted, journal)
    assert (started.model, started.config["model"]) == ("train", "Net")
    assert started.parameters == 16 * 32 + 32 + 32 * 4 + 4
    assert isinstance(journal[-1], RunFailed)
    assert journal[-1].error.endswith(" status 3")


_ENDS = {
    "an exception": "train(after=lambda step: step == 3 and 1 / 0)",
    "ctrl c": "train(after=lambda step: step == 3 and os.kill(os.getpid(), signal.SIGINT))",
    "sigterm": "train(after=lambda step: step == 3 and os.kill(os.getpid(), signal.SIGTERM))",
    "a handler": """
        def stop(number, frame):
            print("stopped by", number)
            raise TimeoutError
        signal.signal(signal.SIGALRM, stop)
        train(1, quiet=True)  # torch imports much at the first optimizer, and drops what is raised meanwhile
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            train(1_000_000, quiet=True)
        except TimeoutError:
            print("in time")
    """,
    "a breakpoint": "train(after=lambda step: step == 3 and breakpoint())",
    "no step": "torch.optim.SGD(Net().parameters()); print(torch.Tensor.backward.__qualname__)",
}


_ENDS_OF_CI = ("an exception", "a handler")


@pytest.mark.parametrize(
    "end",
    [pytest.param(end, marks=pytest.mark.ci if end in _ENDS_OF_CI else pytest.mark.nightly) for end in _ENDS],
)
def test_a_script_ends_as_it_ends_without_us(end: str, folder: Path) -> None:
    stdin = "p step, 'here'\nc\n" if end == "a breakpoint" else ""
    result, journal = same_outcome(folder, script(folder, _ENDS[end]), stdin=stdin)
    last = journal[-1] if journal else None
    assert isinstance(last, RunFailed) == (end in ("an exception", "sigterm"))
    if end == "a breakpoint":
        assert "(3, 'here')" in result.output
    assert result.status == {"an exception": 1, "ctrl c": 130, "sigterm": 143}.get(end, 0)


_CHILDREN = """
import multiprocessing, os, subprocess, sys
import torch
from torch.optim.optimizer import _global_optimizer_pre_hooks
from torch.utils.data import DataLoader, TensorDataset, get_worker_info
from loop import Net, train

def state(*_):
    hooked = [hasattr(each, "__wrapped__") for each in (torch.Tensor.backward, torch.autocast.__enter__)]
    names = [name for name in os.environ if name.startswith(("AMPTUI", "PYTHONPATH"))]
    return hooked, len(_global_optimizer_pre_hooks), names, [path for path in sys.path if "startup" in path]

def tell(*_):
    print(get_worker_info().id, *state(), flush=True)

def child(queue, trains):
    if trains:  # after a training of its parent's, a forked child of torch hangs
        train(2)
        sys.stdout.flush()  # before the parent prints what it gets
    queue.put(state())

def look_around():
    data = TensorDataset(torch.arange(8.0))
    for context in ("fork", "spawn"):
        how = {"num_workers": 1, "multiprocessing_context": context, "worker_init_fn": tell}
        loader = DataLoader(data, batch_size=2, **how)
        print(context, [batch.tolist() for (batch,) in loader], flush=True)
        queue = multiprocessing.get_context(context).Queue()
        process = multiprocessing.get_context(context).Process(target=child, args=(queue, context == "spawn"))
        process.start()
        print(queue.get(), flush=True)
        process.join()
    print(subprocess.run([sys.executable, "-c", "import sys; print(sys.path); import loop; loop.train(1)"],
                         capture_output=True, text=True).stdout, flush=True)

if __name__ == "__main__":
    when = sys.argv[1]
    if when == "before":
        look_around()
    train(3)
    if when == "after":
        look_around()
"""


@pytest.mark.timeout(300)  # eight processes import torch, one after another
@pytest.mark.parametrize(
    "when", [pytest.param("before", marks=pytest.mark.ci), pytest.param("after", marks=pytest.mark.nightly)]
)
def test_children_of_every_kind_have_no_hooks_and_no_variables(when: str, folder: Path) -> None:
    (folder / "train.py").write_text(_CHILDREN)
    result, journal = same_outcome(folder, "train.py", when)
    assert result.status == 0, result.errors
    assert len(of(StepRow, journal)) == 3
    assert result.output.count("([False, False], 0, [], [])") == 2
    assert result.output.count("[False, False] 0 [] []") == 2


@pytest.mark.ci
def test_a_script_that_calls_us_opens_its_own_run(tmp_path: Path, folder: Path) -> None:
    text = """
        import amptui
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters())
        amptui.observe(model, optimizer, samples_per_step=7)
        for step in range(3):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    """
    run = tmp_path / "run"
    command = amptui_command("run", "--observe", "--headless", "--run-dir", str(run), script(folder, text))
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=120)
    assert "amptui attach" not in result.stderr
    assert [record.samples for record in of(StepRow, read(run / "journal.jsonl"))] == [7, 7, 7]


def test_the_verdict_is_on_the_steps_as_they_were(folder: Path) -> None:
    """A loss that is looked at after backward(), as detection libraries do, is of no step."""
    body = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for number in range(31):
    optimizer.zero_grad()
    with torch.autocast('cpu', torch.bfloat16):
        loss = model(torch.ones(8, 4)).square().mean()
    (loss * (float("nan") if number == 30 else 1)).backward()
    if number == 30:
        raise FloatingPointError
    optimizer.step()
"""
    (folder / "train.py").write_text(body)
    done, _ = same_outcome(folder, "train.py")
    assert "AMP bf16  ⚠ the loss of a batch was NaN, no step was taken with it" in done.errors.splitlines()
