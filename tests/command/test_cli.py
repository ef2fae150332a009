"""The command line, in this process: what is said and with which exit status."""

import json
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest
from torchvision.datasets import MNIST

import amptui
from amptui.cli import COMMANDS, HIDDEN_COMMANDS, build_parser, main
from amptui.data.vision import MNIST_FOLDER
from amptui.models import CATALOGUE
from amptui.records.run import RunFailed, RunFinished, RunStarted
from amptui.runs.rundir import default_base
from tests.builders import StepRow, read
from tests.living import train_arguments
from tests.terminal import KNOBS

LINE_THAT_RAISES = 1 + next(
    i for i, line in enumerate(Path(KNOBS).read_text().splitlines()) if "no such layer" in line
)


def test_without_a_command_and_without_a_terminal_it_prints_help_and_its_version(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"amptui {amptui.__version__}\n"
    assert main([]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("usage: amptui ")
    assert all(f"\n    {name} " in captured.out for name in COMMANDS)
    assert captured.err == ""
    for command in COMMANDS:
        with pytest.raises(SystemExit) as left:
            main([command, "--help"])
        assert left.value.code == 0
        assert f"usage: amptui {command}" in capsys.readouterr().out
    assert main(["models"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(CATALOGUE)


HERE = f"train {KNOBS} --headless --device cpu --steps 1 --run-dir run"

USAGE_ERRORS = (
    ("fly", "amptui: no command fly; see `amptui --help`"),
    ("trian mnist-deep", "amptui: no command trian; did you mean train?"),
    ("mnist-deep", "amptui: no command mnist-deep; did you mean `amptui train mnist-deep`?"),
    ("train", "MODEL is missing; `amptui models` lists some"),
    ("train mnist-dep", "no model named 'mnist-dep'; did you mean mnist-deep?"),
    ("train mnist-deep --precision fp4", "argument --precision: 'fp4' is not one of fp32, ieee, tf32, fp16"),
    ("train mnist-deep --amp-dtype float32", "argument --amp-dtype: 'float32' is not one of fp16, bf16"),
    ("train mnist-deep --steps 0", "argument --steps: '0' is not a whole number above 0"),
    ("train mnist-deep --seed -1", "'-1' is not a whole number from 0 to 2^64 - 1"),
    (f"train mnist-deep --steps {'9' * 30}", "is more than 9,223,372,036,854,775,807"),
    (
        "train mnist-deep --nproc 1 --hang-timeout 5",
        "--hang-timeout is for the ranks of --nproc; leave out --hang-timeout",
    ),
    ("train mnist-deep --headless --nproc 2 --device cuda:0", "amptui: --device with 2 ranks: "),
    ("train ~nobody-like-it/x.py", "no model file ~nobody-like-it/x.py; check the path"),
    ("run", "the following arguments are required: SCRIPT; see"),
    ("run no/such.py", "no script 'no/such.py'; check the path, or use -m MODULE"),
    ("train mnist-deep --device tpu", "'tpu' is not auto, cpu, cuda, cuda:N, xpu or mps"),
    ("train mnist-deep --set width", "--set width has no value; write --set NAME=VALUE"),
    ("train mnist-deep --zzz=1", "no option --zzz here; see `amptui train --help`"),
    ("train mnist-deep --precison=fp16", "no option --precison here; did you mean --precision?"),
    ("train mnist-deep simple-cnn", "no argument simple-cnn here; see `amptui train --help`"),
    ("bench mnist-deep --precisions fp32,fp4", "'fp4' is not one of fp32, ieee, tf32, fp16"),
    ("bench mnist-deep --precisions bf16 --device cpu", "nothing to compare; name two"),
    ("export no/such/run --csv x", "no run 'no/such/run'; check the path"),
    ("export no/such/run", "no export format given; use --csv FILE, --tensorboard DIR or --html"),
    ("replay", "no runs in "),
    ("export a --html ~no-such-user/x", "argument --html: '~no-such-user/x': no such home folder"),
    (f"{HERE} --precision bf16 --amp-dtype fp16", "AMP is to be fp16, but the run starts in bf16; leave out"),
    (f"{HERE} --init-weights gone.pt", "/gone.pt: no such file or directory; check the path"),
    (f"{HERE} --save-weights .", ": not a file; name another file"),
    (f"{HERE} --save-weights gone/w.pt", "/gone/w.pt: no such folder; name another file"),
    (f"{HERE} --save-weights file/w.pt", "/file/w.pt: not a directory; name another file"),
)

MODEL_S_OWN = (
    (f"{HERE} --set stepms=3", "Knobs has no option 'stepms'; did you mean step_ms?"),
    (f"{HERE} --set at=soon", "option at: 'soon' is not a whole number"),
    (f"{HERE} --set trouble=fire", "option trouble: 'fire' is not one of none, build"),
    (f"{HERE} --precision tf32", "precision tf32: TF32 needs an NVIDIA GPU; use one of"),
)


@pytest.mark.parametrize(("words", "said"), USAGE_ERRORS + MODEL_S_OWN)
def test_a_usage_error_is_one_line_and_status_2(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert main(words.split()) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.startswith("amptui: ")
    assert captured.err.count("\n") == 1
    assert not default_base().exists() or not [*default_base().iterdir()], "no folder is made for it"
    assert said not in captured.out
    assert (tmp_path / "run").exists() == ((words, said) in MODEL_S_OWN)


def test_a_precision_may_be_called_by_its_dtype() -> None:
    words = ["train", "simple-cnn", "--precision", "bfloat16", "--amp-dtype", "float16"]
    options = build_parser().parse_args(words)
    assert (options.precision, options.amp_dtype) == ("bf16", "fp16")
    options = build_parser().parse_args(["advise", "simple-cnn", "--precisions", "float16,bf16,bfloat16"])
    assert options.precisions == ("fp16", "bf16")


def test_a_training_set_of_less_than_a_batch_is_an_error_of_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--batch-size", "900") == 1
    said = capsys.readouterr().err
    assert "the training set has 800 samples, fewer than one batch of 900" in said
    assert said.count("\n") == 1


BAD_MODEL = """
import torch
from amptui import Arrays, Data, Experiment

class Bad(Experiment):
    def load_data(self, request):
        return Data("none", real=False, train=Arrays(torch.zeros(256, 4), torch.zeros(256, dtype=torch.long)))

    def build_model(self):
        return torch.nn.Linear(4, width)
"""


@pytest.mark.parametrize(
    ("text", "first", "said"),
    [
        (
            BAD_MODEL,
            "Traceback",
            "NameError: name 'width' is not defined ({path}:10, in build_model() of Bad)",
        ),
        (
            BAD_MODEL.replace("width", "2**48"),
            "Traceback",
            "out of host memory in build_model() of Bad; use a",
        ),
        ("class Bad(:", "File", "SyntaxError: invalid syntax (bad.py, line 1) (while importing {path})"),
        (
            "import no_such_module",
            "Traceback",
            "ModuleNotFoundError: No module named 'no_such_module' ({path}:1, ",
        ),
        ("x = 1", "", "{path} defines no Experiment; "),
    ],
)
def test_a_failure_before_the_first_step_is_said_once_after_the_traceback_of_the_user_s_code(
    text: str, first: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.py"
    path.write_text(text)
    words = f"train {path} --headless --device cpu --run-dir {tmp_path / 'run'}"
    assert main(words.split()) == 1
    captured = capsys.readouterr()
    *lines, last = captured.err.splitlines()
    assert last.startswith(f"amptui: {said.format(path=path)}")
    assert not any(word in captured.out for word in ("failed", "Error", "verdict", "journal"))
    assert " ".join(lines).lstrip().startswith(first)
    assert (not lines) == (not first)
    assert not any("amptui/loops" in line for line in lines), "none of amptui's own frames"


@pytest.mark.ci
@pytest.mark.parametrize("to_file", [False, True], ids=["to a pipe", "to a file"])
def test_a_failure_in_the_background_is_said_once(to_file: bool, tmp_path: Path) -> None:
    model, errors = tmp_path / "bad.py", tmp_path / "errors"
    model.write_text(BAD_MODEL)
    command = [sys.executable, "-m", "amptui", "train", str(model), "--device", "cpu", "--detach"]
    with errors.open("w") as file:
        stderr = file if to_file else subprocess.PIPE
        done = subprocess.run(
            [*command, "--run-dir", str(tmp_path / "run")],
            stderr=stderr,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    said = errors.read_text() if to_file else done.stderr
    assert (done.returncode, said.count("Traceback"), said.count("amptui: NameError")) == (1, 1, 1)
    assert "NameError" not in done.stdout


def test_no_error_lists_a_hidden_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fly"]) == 2
    assert not any(name in capsys.readouterr().err for name in HIDDEN_COMMANDS)
    for name in HIDDEN_COMMANDS:
        assert build_parser([name]).parse_args([name, "RUN"]).command == name


def run(tmp_path: Path, *options: str) -> int:
    return main(train_arguments(tmp_path / "run", "--headless", "--set", "step_ms=0", *options))


def test_a_headless_run_says_what_the_journal_keeps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--steps 30 --epochs 3 --precision bf16 --seed 3 --batch-size 16 --lr 0.5"
    assert run(tmp_path, *options.split(), "--clip-norm", "1", "--set", "at=99") == 0
    out = capsys.readouterr().out
    assert "done after 30 steps" in out
    assert "synthetic" in out
    assert "AMP bf16" in out
    assert f"journal: {tmp_path}/run/journal.jsonl" in out
    records = list(read(tmp_path / "run" / "journal.jsonl"))
    steps = [(r.step, r.samples, r.lr, r.precision) for r in records if isinstance(r, StepRow)]
    assert steps == [(step, 16, 0.5, "bf16") for step in range(1, 31)]
    (started,) = [r for r in records if isinstance(r, RunStarted)]
    assert started.model == "knobs"
    assert (started.batch_size, started.total_epochs, started.total_steps) == (16, 3, 30)
    assert (started.precision, started.amp_precision, started.device) == ("bf16", "bf16", "cpu")
    assert [started.config[name] for name in ("seed", "clip_norm", "at")] == [3, 1.0, 99]
    assert not started.data.real
    assert [r.steps for r in records if isinstance(r, RunFinished)] == [30]
    described = json.loads((tmp_path / "run" / "run.json").read_text())
    asked, versions, config = (described.pop(name) for name in ("asked", "versions", "config"))
    assert (asked["steps"], asked["settings"]) == (30, {"step_ms": "0", "at": "99"})
    assert (versions["amptui"], config) == (amptui.__version__, started.config)
    names = ("model", "precision", "device", "device_name", "hardware", "total_steps")
    assert described == {name: getattr(started, name) for name in names} | {"started": started.time}


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("build", f"RuntimeError: no such layer ({KNOBS}:{LINE_THAT_RAISES}, in build_model() of Knobs)"),
        ("data", "load_data() returned a str; return an amptui.Data"),
        ("loss", "ValueError: bad label in batch 5 (" + KNOBS),
        ("exit", "SystemExit: the model left (" + KNOBS),
        ("shape", "Knobs.loss() returned a tensor of shape 3; reduce it to a scalar"),
        ("memory", "out of host memory in step 5; use a smaller --batch-size"),
    ],
)
def test_a_failing_model_is_a_traceback_and_one_line_and_status_1_and_its_steps_are_kept(
    trouble: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--set", f"trouble={trouble}") == 1
    errors = capsys.readouterr().err
    trace, last = errors.rstrip("\n").rpartition("\n")[::2]
    assert said in last
    assert trace.count("Traceback (most recent call last)") == (trouble not in ("data", "shape"))
    records = list(read(tmp_path / "run" / "journal.jsonl"))
    (failed,) = [r for r in records if isinstance(r, RunFailed | RunFinished)]
    assert isinstance(failed, RunFailed)
    assert indent(failed.traceback.strip(), "  ", lambda _line: True) == trace
    steps = 4 if trouble in ("loss", "exit", "shape", "memory") else 0
    assert len([r for r in records if isinstance(r, StepRow)]) == steps


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        ("bench --data-dir typo", 2, "typo is not a folder; correct the path, or create the folder"),
        ("train --data-dir typo", 2, "typo is not a folder; correct the path, or create the folder"),
        ("train --resume --data-dir typo", 2, "typo is not a folder; correct the path, or create the folder"),
        ("train --data-dir sets", 1, "sets/MNIST/raw is damaged; delete it to download"),
        ("train --data-dir sets --data auto", 0, ""),
        ("train --data-dir typo --data synthetic", 0, ""),
    ],
)
def test_data_in_a_named_folder_has_no_stand_in_unless_that_is_asked_for(
    options: str, status: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sets" / MNIST_FOLDER).mkdir(parents=True)
    for name, _ in MNIST.resources:
        (tmp_path / "sets" / MNIST_FOLDER / name.removesuffix(".gz")).write_bytes(b"oops")
    how = "mnist-deep --device cpu --batch-size 4 --run-dir run"
    if options.startswith("train"):
        how += " --headless --steps 1"
    assert main([*options.split(), *how.split()]) == status
    errors = capsys.readouterr().err
    assert said in errors
    assert not said or errors.count("\n") == 1


def test_a_kept_run_is_exported_by_its_folder_or_by_being_the_newest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", KNOBS, "--headless", "--device", "cpu", "--steps", "5", "--set", "step_ms=0"]) == 0
    capsys.readouterr()
    table, page = tmp_path / "run.csv", tmp_path / "run.html"
    assert main(["export", "--csv", str(table), "--html", str(page)]) == 0
    captured = capsys.readouterr()
    assert captured.out.endswith(f"journal.jsonl: exported 5 steps to {table}, {page}\n")
    assert captured.err == ""
    assert len(table.read_text().splitlines()) == 1 + 5
    assert "knobs" in page.read_text()
    again = tmp_path / "again.csv"
    assert main(["export", captured.out.partition("/journal.jsonl")[0], "--csv", str(again)]) == 0
    assert again.read_text() == table.read_text()
    capsys.readouterr()
    assert main(["replay"]) == 2
    assert "`amptui export`" in capsys.readouterr().err, "there is no terminal"


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        (["mnist-deep"], None),
        (["--compile", "mnist-deep"], "default"),
        (["mnist-deep", "--compile", "--seed", "3"], "default"),
        (["--compile", "reduce-overhead", "mnist-deep"], "reduce-overhead"),
        (["mnist-deep", "--compile=max-autotune"], "max-autotune"),
        (["mnist-deep", "--compile", "off"], "off"),
    ],
)
def test_compile_takes_a_mode_and_no_other_word(words: list[str], mode: str | None) -> None:
    for command in ("train", "bench"):
        options = build_parser().parse_args([command, *words])
        assert (options.model, options.compile) == ("mnist-deep", mode)


def test_a_task_of_srun_that_cannot_join_the_others_is_refused_unless_it_shall_train_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would train alone, and so would each of them."""
    variables = {"SLURM_STEP_ID": 0, "SLURM_PROCID": 1, "SLURM_STEP_NUM_TASKS": 2, "SLURM_LOCALID": 1}
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    assert main(["train", "no-such-model", "--headless"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("amptui: this is rank 1 of 2 by SLURM_PROCID, but MASTER_ADDR and MASTER_PORT ")
    assert said.count("\n") == 1
    assert main(["train", "no-such-model", "--headless", "--nproc", "1"]) == 2
    assert "no-such-model" in capsys.readouterr().err
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert main(["train", "no-such-model", "--headless", "--nproc", "2"]) == 2
    assert "--nproc under srun, which starts the ranks" in capsys.readouterr().err
