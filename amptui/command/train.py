"""The commands that train: a model, alone, with ranks or as one rank of a launcher; or a user's script."""

import argparse
import gc
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from amptui.base.errors import UsageError
from amptui.base.terminal import can_show_a_screen
from amptui.command.parser import (
    absolute_path,
    add_shared,
    count,
    hand_over_webhook,
    positive_int,
    precision,
    seconds_or_never,
    training_fields,
    with_data,
)
from amptui.ranks.world import variables_of, world_of
from amptui.recipe.request import TrainRequest, parse_model
from amptui.records.run import AMP_PRECISIONS, PRECISIONS

if TYPE_CHECKING:
    from amptui.process.plan import Plan
    from amptui.ranks.world import World


def add_train_options(parser: argparse.ArgumentParser) -> None:
    parser.description = "Train a model and watch it live. Without a terminal, write plain lines."
    parser.epilog = (
        "On Ctrl+C, SIGTERM, or a signal that batch systems send before they kill a job (SIGUSR1, SIGUSR2, "
        "SIGXCPU, SIGALRM), the run finishes its step, however long it takes, writes a checkpoint and ends. "
        "A second Ctrl+C or SIGTERM ends it at once. In a Slurm script, use #SBATCH --signal=USR1@60, and "
        "--run-dir DIR --resume to continue after a requeue."
    )
    add_shared(parser, "model", nargs="?")
    group = parser.add_argument_group("training")
    add = group.add_argument
    add("--epochs", type=positive_int, metavar="N", help="epochs to train (default: the model's)")
    add("--steps", type=positive_int, metavar="N", help="stop after N steps")
    add_shared(group, "--batch-size", "--accumulate", "--lr", "--clip-norm", "--seed", "--set")
    add("--validate-every", type=positive_int, metavar="N", help="also validate every N steps")
    add("--validation-batches", type=positive_int, metavar="N", help="validate on at most N batches")
    group = parser.add_argument_group("precision and device")
    add = group.add_argument
    add(
        "--precision",
        type=precision,
        choices=PRECISIONS,
        help="precision to start in; ieee is FP32 with TF32 off (default: fp32)",
    )
    add(
        "--amp-dtype",
        type=partial(precision, choices=AMP_PRECISIONS),
        choices=AMP_PRECISIONS,
        help="AMP of a run in FP32, also as float16 or bfloat16 (default: fp16 on CUDA, else bf16)",
    )
    add_shared(group, "--device")
    add("--nproc", type=positive_int, metavar="N", help="train with N processes (DDP), one per GPU")
    add(
        "--fsdp",
        action="store_const",
        const=True,
        help="shard the model across the processes (FSDP2) instead of DDP",
    )
    add(
        "--max-restarts",
        type=count,
        metavar="N",
        help="if a --nproc process fails, restart all of them from the last checkpoint, at most N times",
    )
    add(
        "--hang-timeout",
        type=seconds_or_never,
        metavar="SECONDS",
        help="end a run of several processes if one makes the others wait this long, and name that process; "
        "0: never (default: 600)",
    )
    add_shared(group, "--channels-last", "--cudnn-benchmark", "--compile")
    group = parser.add_argument_group("files")
    add = group.add_argument
    add_shared(group, "--data", "--workers", "--data-dir", "--run-dir")
    add(
        "--resume",
        nargs="?",
        const="",
        metavar="RUN",
        help="resume a run from its last checkpoint, with its original options (default: the newest run that "
        "has one, of MODEL if given). With --run-dir: resume the run in that folder, or start one there",
    )
    add_shared(group, "--trust", help="resume the run even if it is another user's: what it names is run")
    add(
        "--checkpoint-every",
        type=positive_int,
        metavar="N",
        help="also write a checkpoint every N steps (default: after each epoch and at the end)",
    )
    add(
        "--init-weights",
        type=absolute_path,
        metavar="FILE",
        help="start from a state_dict: a file of torch.save, or a .safetensors file",
    )
    add(
        "--save-weights",
        type=absolute_path,
        metavar="FILE",
        help="save a state_dict when the run is done or stopped, but not if it fails: the AveragedModel's if "
        "the experiment has one, otherwise the model's",
    )
    group = parser.add_argument_group("output")
    add = group.add_argument
    add("--detach", action="store_true", help="train in the background; `amptui attach` opens the screen")
    add("--headless", action="store_true", help="write plain lines instead of showing the screen")
    add("--json", action="store_true", help="write every record as a JSON line, and the verdict on AMP last")
    add_shared(group, "--quiet", "--notify")


def run_train(options: argparse.Namespace) -> int:
    # What is imported before the first frame is never garbage, and collecting takes a seventh of the time
    # until that frame. Starting the training turns the collector on again.
    gc.disable()
    try:
        from amptui.process import launch

        hand_over_webhook(options.notify)
        is_alone = options.nproc == 1 and "TORCHELASTIC_RUN_ID" not in os.environ
        world = None if is_alone else world_of(os.environ)
        if world is not None:
            return _train_as_rank(options, world)
        if options.detach and (options.headless or options.json):
            raise UsageError("--detach writes no output", hint="leave out --headless and --json")
        screen = not (options.headless or options.json) and can_show_a_screen()
        plan = _plan(options, training_fields(options) | {"interactive": screen or options.detach})
        return launch.train(plan, detach=options.detach)
    finally:
        gc.enable()


def _train_as_rank(options: argparse.Namespace, world: "World") -> int:
    """Train as one of the processes that a launcher started; rank 0 writes lines."""
    from amptui.process.elastic import run_under_launcher
    from amptui.process.training import leave_at_once

    for name in ("detach", "nproc", "max_restarts"):
        if getattr(options, name):
            option = f"--{name.replace('_', '-')}"
            what = f"{option} under {world.launcher}, which starts the ranks"
            raise UsageError(what, hint=f"leave out {option}")
    if world.master:
        os.environ.update(variables_of(world))

    def make_plan(world: "World") -> "Plan":
        launchers = {"nproc": world.size, "max_restarts": world.max_restarts}
        given = {**training_fields(options), "interactive": False, **launchers}
        return _plan(options, given)

    status = run_under_launcher(world, make_plan, resumes=options.resume is not None)
    leave_at_once(status)


def _plan(options: argparse.Namespace, given: dict[str, Any]) -> "Plan":
    from amptui.process import plan
    from amptui.runs.rundir import folder_name

    resumes = options.resume is not None
    if resumes and options.run_dir is not None:
        if options.resume:
            raise UsageError("--resume RUN and --run-dir both name a run", hint="use one of them")
        # The same command line may start a run and, after a requeue, resume it.
        resumes, options.resume = plan.can_go_on(options.run_dir), str(options.run_dir)
    if resumes:
        text = options.resume or (folder_name(parse_model(options.model).name) if options.model else "")
        planned = plan.plan_resumed(given, text, trust=options.trust)
        return replace(planned, json=options.json, quiet=options.quiet)
    if options.model is None:
        raise UsageError("MODEL is missing", hint="`amptui models` lists some; --resume continues a run")
    planned = plan.plan_new(TrainRequest(**with_data(given)), options.run_dir)
    return replace(planned, json=options.json, quiet=options.quiet)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.usage = "amptui run [options] (SCRIPT | -m MODULE) [ARGUMENT ...]"
    parser.description = (
        "Run a Python script in a new process and show its training: a script that calls amptui.watch() or "
        "amptui.observe(), or with --observe any script that trains with torch.optim. Without a terminal, "
        "the script's output passes through."
    )
    parser.epilog = (
        "The exit status is the script's, unless you close the screen before the script ends. It is 3 if the "
        "script's is 0 but records could not be saved."
    )
    add = parser.add_argument
    add("-m", dest="module", action="store_true", help="run a module, as `python -m MODULE` does")
    add("--observe", action="store_true", help="observe a script that does not call amptui")
    add_shared(parser, "--run-dir")
    add("--headless", action="store_true", help="pass the script through instead of showing the screen")
    add_shared(parser, "--quiet", "--notify")
    add("script", metavar="SCRIPT", help="the script's file, or torchrun; with -m, a module")
    rest = add("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="the script's own arguments")
    rest.required = False  # argparse says of a missing SCRIPT that both are required


def run_run(options: argparse.Namespace) -> int:
    from amptui.guest.run_script import run_script

    hand_over_webhook(options.notify)
    return run_script(
        [*(["-m"] if options.module else []), options.script, *options.arguments],
        run_dir=options.run_dir,
        observe=options.observe,
        screen=not options.headless and can_show_a_screen(),
        quiet=options.quiet,
    )
