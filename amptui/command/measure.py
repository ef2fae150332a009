"""The commands that say what pays here: advise and bench, what the machine can do, which models there are."""

import argparse

from amptui.base.errors import UsageError
from amptui.base.notify_url import take_url
from amptui.base.prompt import say
from amptui.command.parser import (
    MAX_ROUNDS,
    Parser,
    add_shared,
    is_script,
    loss_steps,
    positive_float,
    positive_ints,
    precisions,
    rounds,
    training_fields,
    with_data,
)
from amptui.recipe.request import (
    ADVISE_LOSS_STEPS,
    ADVISE_MINUTES,
    AdviseRequest,
    TrainRequest,
    option_of,
)


def add_advise_options(parser: argparse.ArgumentParser) -> None:
    parser.usage = "amptui advise [options] (MODEL | SCRIPT [ARGUMENT ...])"
    parser.description = (
        "Recommend FP32, bf16, fp16 or fp8 for a model or a script. Measures speed, memory, overflow, "
        "underflow, whether gradients agree, and the loss from the same start. Saves nothing. A SCRIPT must "
        "call amptui.watch() or use a framework's integration; amptui runs it and stops it after measuring."
    )
    parser.epilog = "Put amptui's options before SCRIPT; what follows it goes to the script."
    assert isinstance(parser, Parser), "made by the parser's own class"
    parser.splits_script = True
    add_shared(parser, "model")
    rest = parser.add_argument("arguments", nargs="*", metavar="ARGUMENT", help="the script's own arguments")
    rest.required = False
    add = parser.add_argument_group("measurement").add_argument
    add(
        "--minutes",
        type=positive_float,
        default=ADVISE_MINUTES,
        metavar="X",
        help=f"measure for X minutes at most, from the first step on (default: {ADVISE_MINUTES:g})",
    )
    add(
        "--precisions",
        type=precisions,
        metavar="A,B,...",
        help="precisions to compare with FP32 (default: all that make sense on this machine)",
    )
    add(
        "--loss-steps",
        type=loss_steps,
        default=ADVISE_LOSS_STEPS,
        metavar="N",
        help="compare the loss after N steps (40 or more) from the same start, with several seeds; 0: skip "
        f"this (default: {ADVISE_LOSS_STEPS})",
    )
    add_shared(
        parser.add_argument_group("model and device, not for a SCRIPT"),
        *("--batch-size", "--accumulate", "--lr", "--clip-norm", "--seed", "--set", "--device"),
        *("--channels-last", "--cudnn-benchmark", "--compile", "--data", "--workers", "--data-dir"),
    )
    add_shared(parser.add_argument_group("output"), "--json")


def run_advise(options: argparse.Namespace) -> int:
    from amptui.reports.advise.measuring import advise

    take_url()  # the scripts that are started here are no runs of anybody's
    given, names = training_fields(options), options.precisions
    if names == ("fp32",):
        hint = "name one of bf16, fp16, fp8, tf32 with --precisions"
        raise UsageError("nothing to compare FP32 with", hint=hint)
    script = (options.model, *options.arguments) if is_script(options.model) else ()
    if not script and options.arguments:
        raise UsageError(f"{options.arguments[0]!r} follows a model", hint="only a script has arguments")
    for name in (*given, *(["loss_steps"] if options.loss_steps != ADVISE_LOSS_STEPS else [])):
        if script and name != "model":
            what = f"{option_of(name)} is for models; {options.model} is a script"
            raise UsageError(what, hint="give it in the script, or to the script after its name")
    request = AdviseRequest(
        training=TrainRequest(**with_data(given)),
        script=script,
        precisions=names and tuple(name for name in names if name != "fp32"),
        minutes=options.minutes,
        loss_steps=options.loss_steps,
    )
    return advise(request, json=options.json)


def add_bench_options(parser: argparse.ArgumentParser) -> None:
    parser.description = "Benchmark a model in every precision, in alternating blocks of steps."
    add_shared(parser, "model")
    group = parser.add_argument_group("benchmark")
    add = group.add_argument
    add(
        "--precisions",
        type=precisions,
        metavar="A,B,...",
        help="precisions to compare; the first is the baseline (default: all that make sense on this "
        "machine)",
    )
    add(
        "--batch-size",
        type=positive_ints,
        default=(None,),
        metavar="N[,N...]",
        help="samples per step; several sizes run one after the other (default: the model's)",
    )
    add(
        "--rounds",
        type=rounds,
        metavar="N",
        help=f"stop after N rounds (default: once ratios are known to within 1%%, at most {MAX_ROUNDS})",
    )
    add_shared(group, "--lr", "--clip-norm", "--seed", "--set")
    group = parser.add_argument_group("model and device")
    add_shared(group, "--device", "--channels-last", "--cudnn-benchmark", "--compile")
    group = parser.add_argument_group("files and output")
    add_shared(group, "--data", "--workers", "--data-dir")
    add_shared(group, "--run-dir", help="save the runs there (default: none is saved)")
    add_shared(group, "--json", help="write one JSON object to standard output instead of tables")


def run_bench(options: argparse.Namespace) -> int:
    from amptui.reports.bench.measure import bench

    given = training_fields(options)
    del given["batch_size"]
    return bench(
        TrainRequest(**with_data(given)),
        precisions=options.precisions,
        batch_sizes=options.batch_size,
        rounds=options.rounds,
        run_dir=options.run_dir,
        json=options.json,
    )


def add_doctor_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Check what this machine can do. Each problem is listed with its fix. "
        "The exit status is 1 if training cannot run."
    )
    parser.add_argument("--json", action="store_true", help="write every check as one JSON line")


def run_doctor(options: argparse.Namespace) -> int:
    from amptui.reports.doctor.report import doctor

    return doctor(json=options.json)


def run_models(_options: argparse.Namespace) -> int:
    from amptui.models import CATALOGUE

    width = max(map(len, CATALOGUE))
    say(*(f"{name:{width}}  {lesson}" for name, (_, lesson) in CATALOGUE.items()))
    return 0
