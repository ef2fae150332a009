"""`amptui run` on a real terminal and without one: the script's output, screen and exit status."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from amptui.guest.run_script import LEFT, NEVER_CALLED, script_name
from amptui.records.run import Note, PrecisionChanged, Printed, RunFailed, RunFinished
from amptui.records.steps import StepRecord
from amptui.runs.kept_run import look_at
from amptui.runs.rundir import RunDir
from tests.checkout import ROOT
from tests.living import (
    ALT_SCREEN_OFF,
    assert_restored,
    ended_afterwards,
    records_of,
    run_pid,
    screens_told,
    steps_of,
    wait_for_end,
    wait_until,
)
from tests.single_steps import read
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
            if Path("stop").exists():
                break
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

DIES = """
import amptui
from tests.observed import Loop
loop = Loop("fp32")
amptui.observe(loop.model, loop.optimizer)
for step in range(1, 20):
    loop.train_step(step)
raise ValueError("on purpose")
"""


EXITS = """
import sys
import amptui
from tests.observed import Loop
loop = Loop("fp32")
amptui.observe(loop.model, loop.optimizer)
loop.run(3)
sys.exit(int(sys.argv[1]))
"""

LEAVES = """
import os, signal, sys, amptui
from tests.observed import Loop
loop = Loop("fp32")
amptui.observe(loop.model, loop.optimizer)
loop.run(3)
exec(sys.argv[1])
"""

EXITS_WHEN_TOLD = """
import os, signal, sys, time, amptui
from tests.observed import Loop
loop = Loop("fp32")
amptui.observe(loop.model, loop.optimizer)
while not os.path.exists(sys.argv[1]):
    loop.run(1)
    time.sleep(0.02)
exec(sys.argv[2])
"""

FAILS_BEFORE_ITS_SCREEN = """
import gc, os, signal, time, amptui
from amptui.runs.server import Server
from tests.observed import Loop
loop = Loop("fp32")
amptui.observe(loop.model, loop.optimizer)
loop.run(3)
(server,) = [value for value in gc.get_objects() if isinstance(value, Server)]
while not server._connected:
    loop.run(1)
    time.sleep(0.001)
os.kill(os.getppid(), signal.SIGSTOP)
loop.run(20)
raise ValueError("on purpose")
"""


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


@pytest.mark.ci
def test_torchrun_imports_nothing_from_the_current_folder(tmp_path: Path) -> None:
    """As the program of that name; amptui is started here as the program `amptui` is."""
    (tmp_path / "json.py").write_text("open('taken', 'w')\n")
    command = [sys.executable, "-P", *amptui_command("run", "--headless", "torchrun", "--help")[1:]]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "--nproc-per-node" in result.stdout
    assert not (tmp_path / "taken").exists()


@pytest.mark.ci
@pytest.mark.parametrize("status", [0, 3])
def test_the_exit_status_of_a_script_is_told(status: int, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = run("--run-dir", str(folder), script(tmp_path, EXITS), str(status))
    assert result.returncode == status
    ended, last = list(read(folder / "journal.jsonl"))[-2:]
    assert isinstance(ended, RunFinished)
    assert (ended.reason, ended.steps) == ("ended", 3)
    if status:
        assert isinstance(last, RunFailed)
        assert (last.error, last.step) == ("the script exited with status 3", 3)
        assert look_at(RunDir(folder)).state == "failed"
        assert f"failed at step 3: {last.error}" in result.stderr
    else:
        assert isinstance(last, RunFinished)
        assert (last.reason, last.steps) == ("done", 3)
        assert look_at(RunDir(folder)).state == "finished"
        assert "done after 3 steps" in result.stderr


@pytest.mark.ci
def test_the_screen_s_last_lines_tell_the_exit_status_too(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    signal_file = tmp_path / "told"
    path = script(tmp_path, EXITS_WHEN_TOLD)
    command = amptui_command("run", "--run-dir", str(folder), path, str(signal_file), "sys.exit(3)")
    with ended_afterwards(folder), Terminal(command) as terminal:
        terminal.wait_for("running")  # a script that ends sooner opens no screen
        signal_file.touch()
        terminal.wait_for("ended")
        terminal.press("q")
        assert terminal.wait() == 3
        assert re.search(r"failed at step \d+: .* status 3", terminal.text)
    assert isinstance(list(read(folder / "journal.jsonl"))[-1], RunFailed)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("how", "status", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "the script was killed by SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGTERM)", 143, "the script was killed by SIGTERM"),
        (
            "os._exit(7)",
            7,
            f"the script exited with status 7, {LEFT}",
        ),
        (
            "os.execv('/bin/sh', ['sh', '-c', 'exit 4'])",
            4,
            f"the script exited with status 4, {LEFT}",
        ),
    ],
)
def test_a_script_without_the_time_for_a_last_record_gets_one(
    how: str, status: int, said: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    result = run("--run-dir", str(folder), script(tmp_path, LEAVES), how)
    assert result.returncode == status
    *before, last = read(folder / "journal.jsonl")
    step = max((record.step for record in before if isinstance(record, StepRecord)), default=0)
    assert isinstance(last, RunFailed)
    assert (last.error, last.step) == (said, step)
    assert look_at(RunDir(folder)).state == "failed"
    when = f" at step {step}" if step else ""
    assert f"failed{when}: {said}" in result.stderr


@pytest.mark.ci
def test_a_script_that_leaves_at_once_without_an_error_is_done_with_a_warning(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = run("--run-dir", str(folder), script(tmp_path, LEAVES), "os._exit(0)")
    assert result.returncode == 0
    note, last = list(read(folder / "journal.jsonl"))[-2:]
    assert isinstance(note, Note)
    assert note.text.endswith("its last steps may be missing")
    assert isinstance(last, RunFinished)
    assert last.reason == "done"


@pytest.mark.ci
def test_the_screen_of_a_script_that_is_killed_says_so(tmp_path: Path) -> None:
    folder, signal_file = tmp_path / "run", tmp_path / "told"
    path, how = script(tmp_path, EXITS_WHEN_TOLD), "os.kill(os.getpid(), signal.SIGKILL)"
    command = amptui_command("run", "--run-dir", str(folder), path, str(signal_file), how)
    with ended_afterwards(folder), Terminal(command) as terminal:
        terminal.wait_for("running")
        signal_file.touch()
        terminal.wait_for("the script was killed by SIGKILL")
        assert look_at(RunDir(folder)).state == "failed"  # before the screen is left
        terminal.press("q")
        assert terminal.wait() == 137
        assert re.search(r"failed at step \d+: the script was killed by SIGKILL", terminal.text)
    assert [type(r) for r in read(folder / "journal.jsonl")].count(RunFailed) == 1


@pytest.mark.ci
def test_a_script_that_fails_before_its_screen_can_ask_is_shown_until_q(tmp_path: Path) -> None:
    folder, path = tmp_path / "run", script(tmp_path, FAILS_BEFORE_ITS_SCREEN)
    command = amptui_command("run", "--run-dir", str(folder), path)
    with ended_afterwards(folder), Terminal(command) as terminal:
        wait_until(
            lambda: any(isinstance(r, RunFailed) for r in records_of(folder)), "the script did not fail"
        )
        wait_for_end(folder)
        terminal.process.send_signal(signal.SIGCONT)
        terminal.wait_for("failed: ValueError: on purpose")
        step = steps_of(folder)[-1].step
        terminal.wait_for(rf"step\s+{step}\b")
        terminal.press("q")
        assert terminal.wait() == 1
        assert f"failed at step {step}: ValueError: on purpose" in terminal.text


@pytest.mark.ci
def test_the_death_of_a_script_is_told_by_its_traceback_and_its_run(tmp_path: Path) -> None:
    folder, path = tmp_path / "run", script(tmp_path, DIES)
    bare = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False, timeout=60)
    result = run("--run-dir", str(folder), path)
    trace = bare.stderr.partition("\n")[2]  # after the line that says how to attach
    assert trace in result.stderr
    assert result.returncode == bare.returncode == 1
    last = list(read(folder / "journal.jsonl"))[-1]
    assert isinstance(last, RunFailed)
    assert (last.error, last.step) == ("ValueError: on purpose", 19)


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
def test_an_interrupt_by_kill_reaches_the_script_once(tmp_path: Path) -> None:
    command = amptui_command("run", "--headless", script(tmp_path, COUNTS_INTERRUPTS), "2")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for count in (1, 2):
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == f"interrupted {count}\n"
        output, errors = process.communicate(timeout=60)
    assert output == "in all 2\n"
    assert "KeyboardInterrupt" in errors
    assert process.returncode == 128 + signal.SIGINT


@pytest.mark.ci
def test_ctrl_c_without_a_screen_reaches_the_script_once(tmp_path: Path) -> None:
    command = amptui_command("run", "--headless", script(tmp_path, COUNTS_INTERRUPTS), "1")
    with Terminal(command) as terminal:
        terminal.wait_for("ready")
        terminal.press("\x03")
        terminal.wait_for("in all 1")
        assert terminal.wait() == 128 + signal.SIGINT


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

WATCHES = """
from tests.own_loops import Own
own = Own()
with own.watch() as monitor:
    for batch in own.loader(100_000):
        with monitor.autocast():
            loss = own.loss(batch)
        monitor.backward(loss)
        monitor.step()
        time.sleep(0.01)
"""


def test_a_script_has_its_screen_at_once_and_its_output_in_the_end(tmp_path: Path) -> None:
    folder, opens, path = tmp_path / "run", tmp_path / "opens", script(tmp_path, WAITS)
    command = amptui_command("run", "--run-dir", str(folder), path, str(opens), NEVER_TRAINS)
    with ended_afterwards(folder), Terminal(command, size=(80, 24)) as terminal:
        terminal.wait_for(r"│ loading data +│\n│  40%\|##  \|")
        assert "waiting for amptui.watch() or observe()" in terminal.text
        assert b"\x1b[31mdata" not in terminal.written
        terminal.press("pq")
        opens.touch()
        assert terminal.wait() == 7
        assert_restored(terminal)
        left = bytes(terminal.written).rpartition(ALT_SCREEN_OFF)[2].decode()
        assert "loading \x1b[31mdata\x1b[0m\r\n\r 10%|#   |\r 40%|##  |\r100%|####|\r\ninput ''\r\n" in left
        assert NEVER_CALLED in left
        assert "pq" not in terminal.text


@pytest.mark.ci
def test_a_key_typed_before_a_script_has_begun_its_run_waits_for_it(tmp_path: Path) -> None:
    folder, opens, path = tmp_path / "run", tmp_path / "opens", script(tmp_path, WAITS)
    command = amptui_command("run", "--run-dir", str(folder), path, str(opens), WATCHES)
    with ended_afterwards(folder), Terminal(command, size=(80, 24)) as terminal:
        terminal.wait_for("waiting for amptui.watch")
        terminal.press("p")
        opens.touch()
        terminal.wait_for("AMP bf16 +running")
        terminal.press("\x03")
        terminal.wait()
        assert_restored(terminal)
    assert [r.current for r in read(folder / "journal.jsonl") if isinstance(r, PrecisionChanged)] == ["bf16"]


@pytest.mark.ci
def test_ctrl_c_before_the_run_has_begun_interrupts_the_script(tmp_path: Path) -> None:
    opens, path = tmp_path / "opens", script(tmp_path, WAITS)
    with Terminal(amptui_command("run", path, str(opens), ""), size=(80, 24)) as terminal:
        terminal.wait_for("ctrl.c interrupts the script")
        terminal.wait_for("40%")
        terminal.press("\x03")
        assert terminal.wait() == 128 + signal.SIGINT
        assert_restored(terminal)
        assert "KeyboardInterrupt" in terminal.text


@pytest.mark.ci
def test_a_terminal_that_is_closed_before_the_run_has_begun_does_not_end_the_script(tmp_path: Path) -> None:
    opens, went_on = tmp_path / "opens", tmp_path / "went_on"
    path, ending = script(tmp_path, WAITS), f"Path({str(went_on)!r}).touch()"
    with Terminal(amptui_command("run", path, str(opens), ending), size=(12, 3)) as terminal:
        terminal.wait_for("loading data")  # there is no room for more
        terminal.hang_up()
        assert terminal.wait() == 128 + signal.SIGHUP
        opens.touch()
        wait_until(went_on.exists, "the script ended with its terminal")


@pytest.mark.ci
def test_amptui_killed_before_the_run_has_begun_leaves_a_whole_terminal_and_the_script(
    tmp_path: Path,
) -> None:
    opens, went_on = tmp_path / "opens", tmp_path / "went_on"
    path, ending = script(tmp_path, WAITS), f"Path({str(went_on)!r}).touch()"
    with Terminal(amptui_command("run", path, str(opens), ending), size=(80, 24)) as terminal:
        terminal.wait_for("40%")
        terminal.process.kill()
        terminal.process.wait()
        wait_until(lambda: terminal.read(0.1) and b"the script goes on" in terminal.written, "no last words")
        assert terminal.modes == terminal.modes_before
        assert ALT_SCREEN_OFF in terminal.written
        opens.touch()
        wait_until(went_on.exists, "the script ended with its screen")


@pytest.mark.ci
def test_on_a_terminal_the_screen_opens_and_ctrl_c_interrupts_the_script(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = amptui_command("run", "--run-dir", str(folder), script(tmp_path, TRAINS), "100000", "0")
    with ended_afterwards(folder), Terminal(command) as terminal:
        terminal.wait_for("importing")
        terminal.wait_for("AMP fp16 .*running")
        terminal.press("p")
        terminal.wait_for("this run is only observed")
        terminal.press("\x03")
        assert terminal.wait() == 128 + signal.SIGINT
        assert "stopped after" in terminal.text
    records = list(read(folder / "journal.jsonl"))
    assert isinstance(records[-1], RunFinished)
    assert records[-1].reason == "stopped"
    assert "printed in step 3" in [record.text for record in records if isinstance(record, Printed)]
    log = (folder / "output.log").read_text()
    assert "interrupted\nTraceback" in log


@pytest.mark.ci
def test_a_script_goes_on_without_its_screen_and_can_be_watched_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = amptui_command("run", "--run-dir", str(folder), script(tmp_path, TRAINS), "100000", "0")
    with ended_afterwards(folder):
        with Terminal(command) as terminal:
            terminal.wait_for("AMP fp16 .*running")
            terminal.press("d")
            assert terminal.wait() == 0
            assert "amptui attach" in terminal.text
        pid = run_pid(folder)
        assert pid is not None
        with Terminal(amptui_command("attach", str(folder))) as terminal:
            terminal.wait_for("AMP fp16 .*running")
            terminal.hang_up()
            terminal.wait()
        assert run_pid(folder) == pid
        wait_until(lambda: "hung up" in screens_told(folder), "that the screen has left")
        os.kill(pid, signal.SIGINT)
        wait_for_end(folder)
    assert screens_told(folder) == ["attached", "detached", "attached", "hung up"]


@pytest.mark.ci
def test_the_end_of_the_script_follows_the_end_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    command = amptui_command("run", "--run-dir", str(folder), script(tmp_path, TRAINS), "100000", "6")
    with ended_afterwards(folder), Terminal(command) as terminal:
        terminal.wait_for("AMP fp16 .*running")
        (tmp_path / "stop").touch()
        terminal.wait_for("AMP fp16 .*finished")
        terminal.press("q")
        assert terminal.wait() == 6
        assert "done after" in terminal.text


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
