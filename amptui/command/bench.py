"""Benchmarks a model in every precision."""

import argparse

from amptui.command.option_values import MAX_ROUNDS, path, positive_ints, precisions, rounds
from amptui.command.parser import (
    add_data,
    add_device,
    add_model,
    add_recipe,
    add_speed,
    training_fields,
    with_data,
)
from amptui.recipe.request import BenchRequest, TrainRequest


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Benchmark a model in every precision, in alternating blocks of steps. With --compile, measure each "
        "precision compiled and eager."
    )
    add_model(parser)
    add = parser.add_argument_group("benchmark").add_argument
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
    add_recipe(add)
    add = parser.add_argument_group("model and device").add_argument
    add_device(add)
    add_speed(add)
    add = parser.add_argument_group("files and output").add_argument
    add_data(add)
    add("--run-dir", type=path, metavar="DIR", help="save the runs there (default: none is saved)")
    add("--json", action="store_true", help="write one JSON object to standard output instead of tables")


def run(options: argparse.Namespace) -> int:
    from amptui.reports.bench import bench

    given = training_fields(options)
    del given["batch_size"]
    training = TrainRequest(**with_data(given))
    request = BenchRequest(
        training=training,
        precisions=options.precisions,
        batch_sizes=options.batch_size,
        rounds=options.rounds,
        run_dir=options.run_dir,
    )
    return bench(request, json=options.json)
