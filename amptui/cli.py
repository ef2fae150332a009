"""The commands of the command line: each connects the parts it needs and returns its exit status.

Heavy imports (torch, textual) happen inside functions: the screen opens before torch is imported.
"""

import argparse
import gc
import os
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from amptui.base.errors import AmptuiError, RunFolderError, UsageError
from amptui.base.prompt import complain, replace_closed_streams, say
from amptui.base.terminal import can_show_a_screen
from amptui.command.options import build_parser
from amptui.ranks.launchers import variables_of, world_of
from amptui.recipe.request import ADVISE_LOSS_STEPS, AdviseRequest, BenchRequest, TrainRequest

if TYPE_CHECKING:
    from amptui.command.launch import Plan
    from amptui.command.rank_process import RankPlan
    from amptui.ranks.world import World


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status.

    0 done or stopped by the user, 1 failed, 2 usage error, 3 done without all records or checkpoints, 130
    Ctrl+C, 128 + the signal number for a signal.
    """
    replace_closed_streams()
    try:
        options = build_parser().parse_args(arguments)
        return _COMMANDS[options.command](options)
    except AmptuiError as error:
        complain(str(error))
        return error.exit_status
    except KeyboardInterrupt:
        return 130


def _train(options: argparse.Namespace) -> int:
    # What is imported before the first frame is never garbage, and collecting takes a seventh of the time
    # until that frame. Starting the training turns the collector on again.
    gc.disable()
    try:
        return _launch(options)
    finally:
        gc.enable()


def _launch(options: argparse.Namespace) -> int:
    from amptui.command import launch

    world = None if options.nproc == 1 and "TORCHELASTIC_RUN_ID" not in os.environ else world_of(os.environ)
    if world is not None:
        return _train_as_rank(options, world)
    if options.detach and (options.headless or options.json):
        raise UsageError("--detach writes no output", hint="leave out --headless and --json")
    screen = not (options.headless or options.json) and can_show_a_screen()
    plan = _plan(options, _given(options) | {"interactive": screen or options.detach})
    return launch.train(
        plan,
        json=options.json,
        detach=options.detach,
        frames_per_second=options.fps,
        quiet=options.quiet,
    )


def _train_as_rank(options: argparse.Namespace, world: "World") -> int:
    """Train as one of the processes that a launcher started; rank 0 writes lines."""
    from amptui.command.launch import rank_plan
    from amptui.command.rank_process import leave, run_under_launcher

    for name in ("detach", "nproc", "max_restarts"):
        if getattr(options, name):
            option = f"--{name.replace('_', '-')}"
            what = f"{option} under {world.launcher}, which starts the ranks"
            raise UsageError(what, hint=f"leave out {option}")
    if world.master:
        os.environ.update(variables_of(world))

    def make_plan(world: "World") -> "RankPlan":
        if world.restart and options.run_dir is not None and not options.run_dir.is_dir():
            what = (
                f"the ranks were started again, and {socket.gethostname()}, where rank 0 runs now, does not"
            )
            raise RunFolderError(f"{what} see {options.run_dir}", hint="use a folder that all machines share")
        launchers = {"nproc": world.size, "max_restarts": world.max_restarts}
        given = {**_given(options), "interactive": False, **launchers}
        return rank_plan(_plan(options, given), json=options.json, quiet=options.quiet)

    status = run_under_launcher(world, make_plan, resumes=options.resume is not None)
    leave(status)


def _plan(options: argparse.Namespace, given: dict[str, Any]) -> "Plan":
    from amptui.command import launch
    from amptui.runs.rundir import default_data_dir

    resumes = options.resume is not None
    if resumes and options.run_dir is not None:
        if options.resume:
            raise UsageError("--resume RUN and --run-dir both name a run", hint="use one of them")
        # The same command line may start a run and, after a requeue, resume it.
        resumes, options.resume = launch.can_go_on(options.run_dir), str(options.run_dir)
    if resumes:
        text = options.resume or (launch.newest_of(options.model) if options.model else "")
        return launch.plan_resumed(given, text)
    if options.model is None:
        raise UsageError("MODEL is missing", hint="`amptui models` lists some; --resume continues a run")
    if "data_dir" not in given:
        given["data_dir"] = default_data_dir()
    return launch.plan_new(TrainRequest(**given), options.run_dir)


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of ``TrainRequest`` that the command line sets."""
    values = {
        "model": options.model,
        "epochs": getattr(options, "epochs", None),
        "steps": getattr(options, "steps", None),
        "batch_size": options.batch_size,
        "precision": getattr(options, "precision", None),
        "amp_precision": getattr(options, "amp_dtype", None),
        "checkpoint_every": getattr(options, "checkpoint_every", None),
        "stop_timeout": getattr(options, "stop_timeout", None),
        "device": options.device,
        "learning_rate": options.lr,
        "clip_norm": options.clip_norm,
        "nproc": getattr(options, "nproc", None),
        "fsdp": getattr(options, "fsdp", False) or None,
        "max_restarts": getattr(options, "max_restarts", None),
        "hang_timeout": getattr(options, "hang_timeout", None),
        "accumulate": getattr(options, "accumulate", None),
        "validate_every": getattr(options, "validate_every", None),
        "validation_batches": getattr(options, "validation_batches", None),
        "seed": options.seed,
        "data_dir": options.data_dir,
        "data": options.data,
        "workers": options.workers,
        "channels_last": options.channels_last,
        "cudnn_benchmark": options.cudnn_benchmark,
        "compile_mode": options.compile,
        "init_weights": getattr(options, "init_weights", None),
        "save_weights": getattr(options, "save_weights", None),
        "settings": _settings(options.set) or None,
    }
    given = {name: value for name, value in values.items() if value is not None}
    return given | {"compile_mode": None} if options.compile == "off" else given


def _settings(pairs: list[str]) -> dict[str, str]:
    """``NAME=VALUE`` pairs as a mapping; raises UsageError."""
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            what = "name" if equals else "value"
            raise UsageError(f"--set {pair} has no {what}", hint="write --set NAME=VALUE")
        settings[name.strip().replace("-", "_")] = value
    return settings


def _run(options: argparse.Namespace) -> int:
    from amptui.command.run_script import run_script

    return run_script(
        [*(["-m"] if options.module else []), options.script, *options.arguments],
        run_dir=options.run_dir,
        observe=options.observe,
        screen=not options.headless and can_show_a_screen(),
        frames_per_second=options.fps,
        quiet=options.quiet,
    )


def _attach(options: argparse.Namespace) -> int:
    from amptui.command.launch import attach

    return attach(options.run, frames_per_second=options.fps, quiet=options.quiet)


def _runs(options: argparse.Namespace) -> int:
    from amptui.command.runs_list import list_runs

    return list_runs(json=options.json, out=sys.stdout, limit=options.limit)


def _bench(options: argparse.Namespace) -> int:
    from amptui.reports.bench import bench
    from amptui.runs.rundir import default_data_dir

    given = _given(options)
    del given["batch_size"]
    if "data_dir" not in given:
        given["data_dir"] = default_data_dir()
    training = TrainRequest(**given)
    request = BenchRequest(
        training=training,
        precisions=options.precisions,
        batch_sizes=options.batch_size,
        rounds=options.rounds,
        run_dir=options.run_dir,
    )
    return bench(request, json=options.json)


def _advise(options: argparse.Namespace) -> int:
    from amptui.command.script_source import is_script
    from amptui.reports.advise import advise
    from amptui.runs.rundir import default_data_dir

    given = _given(options)
    script = (options.model, *options.arguments) if is_script(options.model) else ()
    if not script and options.arguments:
        raise UsageError(f"{options.arguments[0]!r} follows a model", hint="only a script has arguments")
    for name in (*given, *(["loss_steps"] if options.loss_steps != ADVISE_LOSS_STEPS else [])):
        if script and name != "model":
            option = _OPTION_NAMES.get(name, name).replace("_", "-")
            what = f"--{option} is for models; {options.model} is a script"
            raise UsageError(what, hint="give it in the script, or to the script after its name")
    if "data_dir" not in given:
        given["data_dir"] = default_data_dir()
    request = AdviseRequest(
        training=TrainRequest(**given),
        script=script,
        precisions=options.precisions,
        minutes=options.minutes,
        loss_steps=options.loss_steps,
        framework=options.lines,
        html=options.html,
    )
    return advise(request, json=options.json)


def _replay(options: argparse.Namespace) -> int:
    from amptui.command.replay import replay
    from amptui.runs.find import find_run

    return replay(find_run(options.run), speed=options.speed)


def _compare(options: argparse.Namespace) -> int:
    from amptui.reports.compare import compare

    return compare(
        options.runs,
        plain=options.plain,
        json=options.json,
        html=options.html,
        target_loss=options.target_loss,
    )


def _export(options: argparse.Namespace) -> int:
    from amptui.reports.export import export
    from amptui.runs.find import find_run

    places = {"csv": options.csv, "tensorboard": options.tensorboard, "html": options.html}
    if not any(places.values()):
        raise UsageError("no export format given", hint="use --csv FILE, --tensorboard DIR or --html FILE")
    journal = find_run(options.run)
    exported = export(journal, **places)
    written = ", ".join(str(place) for place in (*places.values(), exported.ranks_csv) if place is not None)
    say(f"{journal}: exported {exported.steps:,} steps to {written}")
    if exported.passed_over:
        complain(exported.passed_over)
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from amptui.reports.doctor import doctor

    return doctor(json=options.json)


def _models(_options: argparse.Namespace) -> int:
    from amptui.models import CATALOGUE

    width = max(map(len, CATALOGUE))
    for name, (_, lesson) in CATALOGUE.items():
        say(f"{name:{width}}  {lesson}")
    return 0


_OPTION_NAMES = {"learning_rate": "lr", "settings": "set", "compile_mode": "compile"}
"""The options of fields of ``TrainRequest`` that are called otherwise."""

_COMMANDS = {
    "train": _train,
    "run": _run,
    "advise": _advise,
    "attach": _attach,
    "runs": _runs,
    "bench": _bench,
    "replay": _replay,
    "compare": _compare,
    "export": _export,
    "doctor": _doctor,
    "models": _models,
}
