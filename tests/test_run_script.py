"""`amptui run` on a real terminal and without one: the script's output, screen and exit status."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from amptui.base.amp_errors import known_hint
from amptui.base.fork import how_ended
from amptui.guest.run_script import NEVER_CALLED, script_name
from amptui.records.run import Note, Printed, RunFailed, RunFinished
from amptui.runs.kept_run import look_at
from amptui.runs.rundir import RunDir
from tests.builders import StepRow, of, read
from tests.checkout import ROOT
from tests.living import ALT_SCREEN_OFF, ended_afterwards, records_of, steps_of, wait_until
from tests.terminal import Terminal, amptui_command

TRAINS = """
import sys, time
from pathlib import Path
print("importing")
import amptui
from tests.observed import Loop
loop = Loop("fp16")
with amptui.observe(loop.model, loop.optimizer, loop.scaler, samples_per_step=8):
    try:
        for step in range(1, int(sys.argv[1]) + 1):
            loop.train_step(step)
            if step == 3:
                print("printed in step 3")
            time.sleep(0.005)
    except KeyboardInterrupt:
        print("interrupted")
        raise
print("afterwards")
sys.exit(int(sys.argv[2]))
"""

SILENT = """
import sys
print("arguments", sys.argv[1:])
print("input", sys.stdin.read())
print("to stderr", file=sys.stderr)
sys.exit(5)
"""

LEAVES = """
import os, signal, sys, amptui
from tests.observed import Loop
loop = Loop("fp32")
amptui.observe(loop.model, loop.optimizer)
loop.run(3)
exec(sys.argv[1])
"""

LEAVES_WHEN_TOLD = LEAVES.replace("loop.run(3)", "while not os.path.exists(sys.argv[2]):\n    loop.run(1)")


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "train.py"
    path.write_text(text)
    return str(path)


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = amptui_command("run", *arguments)
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, check=False, timeout=120, cwd=ROOT
    )


def test_a_script_that_never_calls_amptui_is_passed_through(tmp_path: Path) -> None:
    path, folder = script(tmp_path, SILENT), tmp_path / "run"
    result = run("--run-dir", str(folder), path, "-m", "--run-dir", "x", stdin="typed")
    assert result.stdout == "arguments ['-m', '--run-dir', 'x']\ninput typed\n"
    assert result.returncode == 5
    assert result.stderr.splitlines() == [
        f"amptui: recording {folder}",
        "to stderr",
        f"amptui: {NEVER_CALLED}",
    ]
    assert not folder.exists()


def test_a_log_of_the_user_s_own_stays_where_nothing_was_recorded(tmp_path: Path) -> None:
    """As of `amptui run --run-dir . script.py > output.log`."""
    log = tmp_path / "output.log"
    log.write_text("mine")
    run("--run-dir", str(tmp_path), script(tmp_path, SILENT))
    assert log.read_text() == "mine"


@pytest.mark.ci
def test_without_a_terminal_a_script_keeps_its_output_and_a_summary_follows(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = run("--run-dir", str(folder), script(tmp_path, TRAINS), "5", "4")
    assert result.stdout == "importing\nprinted in step 3\nafterwards\n"
    assert result.returncode == 4
    assert "done after 5 steps" in result.stderr
    assert [record.step for record in steps_of(folder)] == [1, 2, 3, 4, 5]


@pytest.mark.ci
def test_the_demo_trains_and_logs(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = run("--run-dir", str(folder), str(ROOT / "demo" / "own_loop.py"), "6")
    assert (result.returncode, result.stdout.startswith("last loss ")) == (0, True)
    assert [(record.step, record.samples, set(record.losses)) for record in steps_of(folder)] == [
        (step, 128, {"accuracy"}) for step in range(1, 7)
    ]


def test_a_module_is_run_as_python_runs_it(tmp_path: Path) -> None:
    result = run("--run-dir", str(tmp_path / "run"), "-m", "json.tool", "--compact", stdin='{"a": 1}')
    assert (result.returncode, result.stdout) == (0, '{"a":1}\n')


FP16_GRADIENTS = known_hint("Attempting to unscale FP16 gradients.")[1]

HOW_SCRIPTS_END = (
    ("sys.exit(3)", 3, "the script exited with status 3"),
    ("raise ValueError('on purpose')", 1, "ValueError: on purpose"),
    (
        "raise ValueError('Attempting to unscale FP16 gradients.')",
        1,
        f"ValueError: Attempting to unscale FP16 gradients; {FP16_GRADIENTS}",
    ),
    ("os.kill(os.getpid(), signal.SIGKILL)", 137, f"the script {how_ended(-signal.SIGKILL)}"),
    ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "the script was killed by SIGSEGV"),
    ("os._exit(7)", 7, "the script exited with status 7"),
    ("os._exit(0)", 0, ""),
    ("os.execv('/bin/sh', ['sh', '-c', 'exit 4'])", 4, "the script exited with status 4"),
)
"""What it does at its end, its exit status, and what its run says of that."""


@pytest.mark.ci
@pytest.mark.parametrize(("how", "status", "error"), HOW_SCRIPTS_END)
def test_how_a_script_ends_is_its_run_s_last_record_and_the_exit_status(
    how: str, status: int, error: str, tmp_path: Path
) -> None:
    folder, path = tmp_path / "run", script(tmp_path, LEAVES)
    result = run("--run-dir", str(folder), path, how)
    assert result.returncode == status
    *before, last = read(folder / "journal.jsonl")
    step = max((record.step for record in of(StepRow, before)), default=0)
    if how.startswith(("sys", "raise")):
        assert step == 3
    if error:
        assert isinstance(last, RunFailed)
        assert (last.error, last.step) == (error, step)
        assert look_at(RunDir(folder)).state == "failed"
        assert f"failed{f' at step {step}' if step else ''}: {error}" in result.stderr
    else:
        assert isinstance(last, RunFinished)
        assert last.reason == "done"
        assert look_at(RunDir(folder)).state == "finished"
    assert ("Fatal Python error: Segmentation fault" in result.stderr) == ("SIGSEGV" in how)
    warned = [note.text for note in of(Note, before) if note.text.endswith("its last steps may be missing")]
    assert len(warned) == (how == "os._exit(0)")
    if how.startswith("raise"):
        bare = subprocess.run([sys.executable, path, how], capture_output=True, text=True, check=False)
        assert bare.stderr.partition("\n")[2] in result.stderr  # after the line that says how to attach


@pytest.mark.parametrize("options", [["--observe"], []])
def test_a_script_that_is_killed_leaves_its_stack(options: list[str], tmp_path: Path) -> None:
    path = script(tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    result = run(*options, "--run-dir", str(tmp_path / "run"), path)
    assert result.returncode == 139
    assert f'File "{path}", line 2' in result.stderr


def test_an_error_of_torch_s_before_the_first_step_has_its_fix(tmp_path: Path) -> None:
    path = script(tmp_path, "import torch\ntorch.nn.Linear(2, 1)(torch.ones(1, 2).half())\n")
    result = run("--observe", "--run-dir", str(tmp_path / "run"), path)
    assert (result.returncode, result.stderr.count("RuntimeError")) == (1, 1)
    assert result.stderr.splitlines()[-2].endswith("# or x.to(weight.dtype)")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("how", "status", "shown", "said"),
    [
        ("sys.exit(3)", 3, "ended", "the script exited with status 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "the script was killed", "was killed by SIGKILL"),
    ],
)
def test_the_screen_and_its_last_lines_tell_how_a_script_ended(
    how: str, status: int, shown: str, said: str, tmp_path: Path
) -> None:
    folder, told = tmp_path / "run", tmp_path / "told"
    path = script(tmp_path, LEAVES_WHEN_TOLD)
    command = amptui_command("run", "--run-dir", str(folder), path, how, str(told))
    with ended_afterwards(folder), Terminal(command) as terminal:
        terminal.wait_for("running")  # a script that ends sooner opens no screen
        told.touch()
        terminal.wait_for(shown)
        assert terminal.leave("q") == status
        # Without spaces: where the terminal breaks the line depends on the folder's name.
        last_words = "".join(terminal.text.split())
        assert re.search(rf"failedatstep[\d,]+:.*{said.replace(' ', '')}", last_words)
    assert isinstance(records_of(folder)[-1], RunFailed)
    assert [type(record) for record in records_of(folder)].count(RunFailed) == 1


COUNTS_INTERRUPTS = """
import os, signal, sys, time
count, limit = 0, time.monotonic() + 30
def interrupted(*_):
    global count
    count += 1
    os.write(1, b"interrupted %d\\n" % count)
signal.signal(signal.SIGINT, interrupted)
os.write(1, b"ready\\n")
while count < int(sys.argv[1]) and time.monotonic() < limit:
    time.sleep(0.01)
time.sleep(0.5)  # for one too many
os.write(1, b"in all %d\\n" % count)
signal.signal(signal.SIGINT, signal.default_int_handler)
raise KeyboardInterrupt
"""


@pytest.mark.ci
@pytest.mark.parametrize(("by", "times"), [("kill", 2), ("ctrl c", 1)])
def test_an_interrupt_without_a_screen_reaches_the_script_once(by: str, times: int, tmp_path: Path) -> None:
    command = amptui_command("run", "--headless", script(tmp_path, COUNTS_INTERRUPTS), str(times))
    with Terminal(command) as terminal:
        terminal.wait_for("ready")
        for count in range(1, times + 1):
            if by == "kill":
                terminal.process.send_signal(signal.SIGINT)
            else:
                terminal.press("\x03")
            terminal.wait_for(f"interrupted {count}")
        terminal.wait_for(f"in all {times}")
        assert terminal.wait() == 128 + signal.SIGINT
        assert "KeyboardInterrupt" in terminal.text


WAITS = """
import sys, time
from pathlib import Path
print("loading \\x1b[31mdata\\x1b[0m")
sys.stderr.write("\\r 10%|#   |")
sys.stderr.write("\\r 40%|##  |")
while not Path(sys.argv[1]).exists():
    time.sleep(0.01)
sys.stderr.write("\\r100%|####|\\n")
exec(sys.argv[2])
"""

NEVER_TRAINS = "print('input', repr(sys.stdin.read())); sys.exit(7)"


def test_what_a_script_prints_before_its_run_is_on_the_terminal_at_once(tmp_path: Path) -> None:
    folder, opens, path = tmp_path / "run", tmp_path / "opens", script(tmp_path, WAITS)
    command = amptui_command("run", "--run-dir", str(folder), path, str(opens), NEVER_TRAINS)
    with ended_afterwards(folder), Terminal(command, size=(80, 24)) as terminal:
        terminal.wait_for("40%")
        assert "the screen opens when the script calls amptui.watch() or observe()" in terminal.text
        opens.touch()
        assert terminal.wait() == 7
        written = bytes(terminal.written).decode()
        assert (
            "loading \x1b[31mdata\x1b[0m\r\n\r 10%|#   |\r 40%|##  |\r100%|####|\r\ninput ''\r\n" in written
        )
        assert NEVER_CALLED in written
        assert ALT_SCREEN_OFF not in bytes(terminal.written)


@pytest.mark.ci
def test_ctrl_c_before_the_run_has_begun_interrupts_the_script(tmp_path: Path) -> None:
    opens, path = tmp_path / "opens", script(tmp_path, WAITS)
    with Terminal(amptui_command("run", path, str(opens), ""), size=(80, 24)) as terminal:
        terminal.wait_for("40%")
        assert terminal.leave("\x03") == 128 + signal.SIGINT
        assert "KeyboardInterrupt" in terminal.text


@pytest.mark.ci
def test_a_screen_that_is_gone_before_the_run_has_begun_does_not_end_the_script(tmp_path: Path) -> None:
    opens, went_on = tmp_path / "opens", tmp_path / "went_on"
    path, ending = script(tmp_path, WAITS), f"Path({str(went_on)!r}).touch()"
    with Terminal(amptui_command("run", path, str(opens), ending), size=(80, 24)) as terminal:
        terminal.wait_for("40%")
        terminal.hang_up()
        assert terminal.wait() == 128 + signal.SIGHUP
        opens.touch()
        wait_until(went_on.exists, "the script ended with its screen")


@pytest.mark.ci
def test_on_a_terminal_the_screen_opens_and_ctrl_c_interrupts_the_script(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = amptui_command("run", "--run-dir", str(folder), script(tmp_path, TRAINS), "100000", "0")
    with ended_afterwards(folder), Terminal(command) as terminal:
        terminal.wait_for("importing")
        terminal.wait_for("AMP fp16 .*running")
        terminal.press("p", until="this run is only observed")
        assert terminal.leave("\x03") == 128 + signal.SIGINT
        assert "stopped after" in terminal.text
    records = list(read(folder / "journal.jsonl"))
    assert isinstance(records[-1], RunFinished)
    assert records[-1].reason == "stopped"
    assert "printed in step 3" in [record.text for record in of(Printed, records)]
    log = (folder / "output.log").read_text()
    assert "interrupted\nTraceback" in log


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["-m", "torch.distributed.run", "--nproc-per-node", "2", "sub/train.py", "x.py"], "train"),
        (["/usr/bin/torchrun", "--nproc-per-node=2", "-m", "package.train", "--lr", "1"], "train"),
        (["torchrun", "--no-python", "wrapper.sh"], "torchrun"),
    ],
)
def test_a_run_of_several_ranks_has_its_script_s_name(command: list[str], name: str) -> None:
    assert script_name(command) == name
