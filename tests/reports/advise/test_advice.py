"""What is recommended in each situation, in which words; and a whole report as lines, JSON and page."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

from amptui.cli import build_parser
from amptui.command.parser import training_fields
from amptui.recipe.float8 import Float8Linears
from amptui.recipe.request import AdviseRequest, TrainRequest
from amptui.reports.advise.advice import Candidate, Evidence, Exclusion, recommend
from amptui.reports.advise.advice_report import (
    WIDTH,
    Recommendation,
    cautions,
    headline,
    report_json,
    report_lines,
    table_rows,
)
from amptui.reports.advise.loss_race import LossRace
from amptui.reports.advise.paste_lines import lines_for, train_command
from amptui.runs.rundir import default_data_dir
from amptui.telemetry.finding import Finding
from amptui.telemetry.view import EMPTY_VIEW
from tests.golden import Goldens
from tests.reports.advise.situations import HIGHER_LOSSES, SAME_LOSSES, candidate, finding
from tests.reports.bench.measurements import amp, measured, timing
from tests.reports.texts import json_text

NAN = float("nan")
NAN_LOSSES = (SAME_LOSSES[0], (1.0, float("nan")))

SKIPPED = finding(
    "overflow",
    "skipped mostly",
    "error",
    about="fp16",
    numbers={"recent_skips": 38, "recent": 40},
    precision="fp16",
)
UNDERFLOW = finding(
    "float16", "underflows", "warning", about="fp16", numbers={"share": 0.31, "scale": 65536.0}
)
OUTSIDE = finding(
    "forward",
    "overflowed",
    "error",
    about="fp16",
    numbers={"largest": float("inf")},
    names={"place": "features.3", "kind": "Conv2d", "dtype": "float16", "way": "forward"},
)


def differing(precision: str, grade: Any = "warning") -> Finding:
    state = "differ" if grade == "warning" else "disagree"
    return finding(
        "agreement",
        state,
        grade,
        numbers={"cosine": 0.7, "count": 1, "layers": 9, "loss": 1.0, "other_loss": 1.0},
        names={"place": "conv1"},
        about=precision,
        happened=False,
    )


def slow(precision: str) -> Candidate:
    return candidate(precision, exclusion=Exclusion("slow", value=13.0), losses=None)


SITUATIONS: dict[str, Sequence[Candidate]] = {
    "bf16 is faster and safe": [candidate("bf16", 1.65), candidate("fp16", 1.66)],
    "fp16 is clearly faster": [candidate("bf16", 1.2), candidate("fp16", 1.9)],
    "only fp16 is faster": [candidate("bf16", 0.9), candidate("fp16", 1.9)],
    "fp16 is skipped": [candidate("bf16", 1.2), candidate("fp16", 1.9, SKIPPED)],
    "fp16 is all there is, skipped": [candidate("fp16", 1.9, SKIPPED)],
    "fp16 underflows": [candidate("bf16", 1.5), candidate("fp16", 1.9, UNDERFLOW)],
    "fp16 overflows forward": [candidate("fp16", 1.9, OUTSIDE)],
    "all are slower": [candidate("bf16", 0.8), candidate("fp16", 0.7)],
    "fp16 is far slower": [slow("fp16")],
    "launch-bound": [candidate("bf16", 1.0, finding("limit", "launch", "neutral"))],
    "as fast, less memory": [candidate("bf16", 1.0, memory=0.7)],
    "as fast, hardly less memory": [candidate("bf16", 1.0, memory=0.97)],
    "no clear difference": [candidate("bf16", 1.0, worth="open")],
    "gradients differ, the loss does not": [candidate("bf16", 1.5, differing("bf16"))],
    "gradients differ, no loss": [candidate("bf16", 1.5, differing("bf16"), losses=None)],
    "gradients disagree": [candidate("bf16", 1.5, differing("bf16", "error"))],
    "the loss is higher": [candidate("bf16", 1.5, losses=HIGHER_LOSSES)],
    "the loss is lower": [candidate("bf16", 1.5, losses=HIGHER_LOSSES[::-1])],
    "the loss is NaN": [candidate("bf16", 1.5, losses=NAN_LOSSES)],
    "no losses were compared": [candidate("bf16", 1.5, losses=None)],
    "TF32 is faster than AMP": [candidate("tf32", 1.5), candidate("bf16", 1.1)],
    "TF32 is faster, its loss higher": [candidate("tf32", 1.5, losses=HIGHER_LOSSES)],
    "FP8 is clearly faster than bf16": [candidate("bf16", 1.6), candidate("fp8", 2.2)],
    "FP8 is hardly faster than bf16": [candidate("bf16", 1.6), candidate("fp8", 1.62)],
    "FP8 differs, bf16 is safe": [
        candidate("bf16", 1.6),
        candidate("fp8", 2.2, differing("fp8"), losses=None),
    ],
    "weights became NaN": [candidate("bf16", exclusion=Exclusion("weights lost"), losses=None), slow("fp16")],
    "nothing runs here": [candidate("bf16", exclusion=Exclusion("not here", "no kernel"), losses=None)],
    "ended before the speeds": [candidate("bf16", losses=None)],
    "FP32 fails": [
        candidate(
            "bf16", 1.5, finding("loss", "not finite", "error", precision="fp32", numbers={"loss": NAN})
        )
    ],
}


def test_each_situation_has_its_recommendation_and_its_words(goldens: Goldens) -> None:
    """What is recommended and why, the headline, what to look out for, and the rows of the table."""
    lines = []
    for name, found in SITUATIONS.items():
        advice = recommend(found)
        lines += [f"== {name}: {advice.precision}, {advice.reason}", headline(advice)]
        lines += cautions(advice, found, EMPTY_VIEW)
        lines += [" | ".join(row) for row in table_rows(EMPTY_VIEW, found)]
    others = recommend([candidate("bf16", 1.5)], other_weights=True)
    lines += [f"== other weights: {others.precision}, {others.reason}", headline(others)]
    goldens.check("reports/advise situations", "\n".join(lines))


# --------------------------------------------------------------------------------------- reports


LONG = "encoder.layers.11.self_attention.output_projection.dense"
DIFFERS = replace(differing("bf16"), names={"place": LONG}, precision="bf16")


def found(*candidates: Candidate, interrupted: bool = False) -> Recommendation:
    timings = (timing("fp32", 0.005), timing("bf16", 0.004, bound="launch"))
    view = measured(amp(1.65, precision="bf16"), amp(1.9), timings=timings).view
    losses = {"fp32": SAME_LOSSES[0], "bf16": SAME_LOSSES[1]}
    return Recommendation(
        request=AdviseRequest(training=TrainRequest(model="mnist-deep"), minutes=1.0, loss_steps=0),
        evidence=Evidence(
            view=view,
            missing={"x-ray": "<b>no</b> forward pass"},
            race=LossRace(steps=300, finals=losses),
        ),
        candidates=candidates,
        advice=recommend(candidates),
        interrupted=interrupted,
    )


def three() -> Recommendation:
    """bf16 is recommended though gradients differ, fp16 is not safe, and TF32 is not here."""
    not_finite = finding("loss", "not finite", "error", numbers={"loss": NAN}, about="fp16", precision="fp16")
    return found(
        candidate("bf16", 1.65, DIFFERS, memory=0.71),
        candidate("fp16", 1.9, not_finite),
        candidate("tf32", losses=None, exclusion=Exclusion("not here", "no TF32 here")),
    )


def test_a_report_in_lines_of_80_columns(goldens: Goldens) -> None:
    lines = report_lines(three())
    goldens.check("reports/advise", "\n".join(lines))
    interrupted = found(candidate("bf16", 0.8), interrupted=True)
    goldens.check("reports/advise, interrupted, FP32", "\n".join(report_lines(interrupted)))
    assert max(map(len, lines)) <= WIDTH


def test_the_command_trains_what_was_measured() -> None:
    def training(command: str) -> TrainRequest:
        return TrainRequest(**training_fields(build_parser().parse_args(shlex.split(command)[1:])))

    asked = (
        "amptui train 'my models/a.py' --batch-size 64 --accumulate 2 --lr 0.1 --clip-norm 1 --seed 3"
        " --device cuda:1 --data synthetic --data-dir /data --workers 0 --set width=64 --set 'note=a b'"
        " --channels-last --cudnn-benchmark --compile"
    )
    request = AdviseRequest(training=training(asked), minutes=1.0, loss_steps=0)
    assert training(train_command(request, "tf32")) == replace(request.training, precision="tf32")
    plain = replace(request, training=TrainRequest(model="x", data_dir=default_data_dir()))
    assert train_command(plain, "bf16") == "amptui train x --precision bf16"


def test_a_report_as_strict_json(goldens: Goldens) -> None:
    goldens.check("reports/advise json", json_text(report_json(three())))


# ------------------------------------------------------------------------------- the lines to paste
def test_the_lines_to_paste_for_each_precision(goldens: Goldens) -> None:
    text = []
    for precision in ("fp32", "bf16", "fp16", "tf32", "fp8"):
        on_a_gpu = lines_for(precision, "cuda", command="amptui train x", clip_norm=2.0, compiles=True)
        for device, lines in {"cuda": on_a_gpu, "cpu": lines_for(precision, "cpu")}.items():
            text += [f"== {precision} on {device}"]
            text += [line for name, own in lines.items() for line in (f"-- {name}", *own)]
    goldens.check("reports/advise lines to paste", "\n".join(text))


def trained(
    model: nn.Module, features: int, precision: str, clip_norm: float | None = None
) -> dict[str, Any]:
    """What the lines of a plain loop leave behind."""
    names = {
        "torch": torch,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss_function": nn.CrossEntropyLoss(),
        "batches": [(torch.randn(3, features), torch.tensor([0, 1, 0]))] * 2,
    }
    exec("\n".join(lines_for(precision, "cpu", clip_norm=clip_norm)["pytorch"]), names)  # noqa: S102
    assert torch.isfinite(names["loss"])  # type: ignore[arg-type]
    return names


@pytest.mark.ci
@pytest.mark.usefixtures("usable_torchao")
def test_the_lines_of_fp8_train_the_layers_that_amptui_takes() -> None:
    model = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 3))
    expected = Float8Linears(model)
    assert expected.prepare() == ""
    trained(model, 32, "fp8")
    taken = [name for name, layer in model.named_modules() if type(layer).__name__ == "Float8Linear"]
    assert taken == list(expected.linears)


@pytest.mark.parametrize(("precision", "clip_norm"), list(product(("bf16", "fp16"), (None, 0.5))))
def test_the_plain_loop_trains(precision: str, clip_norm: float | None) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    before = model.weight.detach().clone()
    names = trained(model, 4, precision, clip_norm)
    assert not torch.equal(model.weight, before)
    assert ("scaler" in names) == (precision == "fp16")
