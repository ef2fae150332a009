"""Trainings of amptui's command line leave the bits of a loop by hand: one row for each training."""

from pathlib import Path
from typing import Any

import pytest

from tests.experiments.by_hand import Loop, Training
from tests.experiments.recorded import assert_same_run, command_line, order_of
from tests.warm import WarmSource

EXPLODES = {"factor": 1e4, "epochs": 3}
"""Its gradients leave float16's range at any scale above a few hundred."""


def row(name: str, *marks: pytest.MarkDecorator, **options: Any) -> Any:
    """A training by its name; those without a mark are quick."""
    own = set(Training.__dataclass_fields__)
    fields = {key: options.pop(key) for key in list(options) if key not in own}
    return pytest.param(Training(**options, recipe=fields), id=name, marks=marks)


ALL: dict[str, Any] = {
    "optimizer": "fused adam",
    "groups": True,
    "schedule": "warm-up and cosine",
    "average": 0.9,
    "norm": True,
    "dropout": 0.2,
    "parts": True,
    "data": "jitter",
    "accumulate": 3,
    "clip_norm": 0.5,
    "epochs": 3,
    "validate_every": 2,
}

OF_RANKS = {"accumulate": 2, "clip_norm": 0.5, "epochs": 4, "schedule": "cosine", "validates": False}

CI, TORCH = pytest.mark.ci, pytest.mark.torch

EXPERIMENTS = [
    # ---------------------------------------------------------------- optimizers, in each precision
    row("Adam in FP32"),
    row("Adam in bf16", CI, precision="bf16"),
    row("SGD with momentum in bf16", CI, precision="bf16", optimizer="momentum"),
    row("fused SGD in fp16", CI, TORCH, precision="fp16", optimizer="fused sgd", spoilt="2,9"),
    row("fused Adam in fp16", TORCH, precision="fp16", optimizer="fused adam", spoilt="2,3"),
    row("AdamW in two groups in bf16", precision="bf16", optimizer="adamw", groups=True),
    row("RMSprop in fp16", CI, precision="fp16", optimizer="rmsprop", spoilt="1,2,3"),
    # ------------------------------------------------------------------------------------ schedules
    row("warm-up and cosine, skips", TORCH, precision="fp16", spoilt="2,9", schedule="warm-up and cosine"),
    row("one cycle with momentum", CI, optimizer="momentum", schedule="one cycle"),
    row("one cycle of Adam's betas, skips", CI, precision="fp16", spoilt="1,5", schedule="one cycle"),
    row("exponential, groups, skips", precision="fp16", spoilt="3", schedule="exponential", groups=True),
    row("two schedules in sequence", CI, schedule="two in sequence"),
    row("a schedule of epochs, skips", CI, precision="fp16", spoilt="8", schedule="cosine", by_epoch=True),
    row("a plateau", lr=0.5, epochs=4, schedule="plateau", by_epoch=True),
    # --------------------------------------------------------------------- accumulation and clipping
    row("accumulation of 3 with 2 left", CI, accumulate=3),
    row("accumulation with unequal batches", accumulate=3, data="loader"),
    row("accumulation in fp16, a spoilt batch", precision="fp16", accumulate=3, spoilt="2,7"),
    row("accumulation of parts", CI, accumulate=4, parts=True, data="loader"),
    row("clipping in fp16, skips", TORCH, precision="fp16", clip_norm=0.05, spoilt="2,3"),
    row("clipping and accumulation", CI, precision="fp16", clip_norm=0.3, accumulate=4, spoilt="6"),
    # -------------------------------------------------------------------- loss scales and skipped steps
    row("calibration", TORCH, precision="fp16", optimizer="sgd", lr=1e-4, **EXPLODES),
    row("calibration, accumulated", CI, precision="fp16", accumulate=2, schedule="cosine", **EXPLODES),
    row("losses of NaN in fp16", precision="fp16", nans="4,5", average=0.9),
    row("a scale that grows", CI, TORCH, precision="fp16", epochs=251, spoilt="3", validates=False),
    # ---------------------------------------------------------------------- averages, buffers, dropout
    row("an average, skips", precision="fp16", average=0.9, spoilt="2,9", schedule="cosine"),
    row("batch norm in fp16, skips", precision="fp16", norm=True, spoilt="2,3"),
    row("all of it", TORCH, precision="fp16", spoilt="3,9,20", **ALL),
    row("lazy layers", lazy=True, norm=True, data="jitter", dropout=0.2),
    row("lazy layers, resumed", CI, lazy=True, norm=True, data="own order", ends=("term 5",)),
    # ------------------------------------------------------------- data, lengths, seeds, validation
    row("a loader", CI, data="loader", dropout=0.2),
    row("a loader with an order of its own", CI, precision="bf16", data="own order", dropout=0.2),
    row("images that draw random numbers", data="jitter", dropout=0.2),
    row("a stream", CI, data="stream"),
    row("batches of 1", CI, samples=9, batch_size=1),
    row("a short last batch", CI, batch_size=32, data="loader", precision="fp16"),
    row("a large seed", CI, seed=2**40 + 7, dropout=0.2),
    row("fewer steps than an epoch", CI, steps=3),
    row("steps over epochs", CI, steps=21, schedule="cosine"),
    row("steps of a loader that end in an epoch", CI, steps=12, data="jitter", accumulate=2),
    row("parts of the loss", CI, precision="bf16", parts=True),
    row("validation in epochs", validate_every=3, validation_batches=2),
    row("validation, stopped at its step", CI, validate_every=4, ends=("term 4", "term 5")),
    row("no validation", CI, validates=False),
    # ------------------------------------------------------------------------------------ two ranks
    row("two ranks", CI, nproc=2, validates=False),
    row("two ranks in bf16", CI, nproc=2, precision="bf16", **OF_RANKS),
    row("two ranks in fp16, skips", CI, TORCH, nproc=2, precision="fp16", spoilt="2,3", **OF_RANKS),
    # ---------------------------------------------------------------- trainings that end and are resumed
    row("stopped and resumed", ends=("term 5",), data="jitter", dropout=0.2),
    row("stopped twice", CI, precision="bf16", ends=("term 3", "term 11"), schedule="cosine", groups=True),
    row(
        "stopped in fp16 after skips",
        CI,
        TORCH,
        precision="fp16",
        spoilt="2,3",
        ends=("term 4",),
        average=0.9,
    ),
    row("killed in an epoch", CI, precision="fp16", ends=("kill 7",), checkpoint_every=3, norm=True),
    row("killed with a worker", CI, ends=("kill 13",), data="workers", checkpoint_every=5),
    row("stopped in an accumulated step", CI, precision="fp16", ends=("term 8",), accumulate=3, spoilt="5"),
    row("all of it, stopped and killed", CI, TORCH, ends=("term 8", "kill 20"), checkpoint_every=2, **ALL),
]

STATUSES = {"": 0, "term": 143, "kill": -9}
"""How `amptui train` ends with its training."""


@pytest.mark.parametrize("training", EXPERIMENTS)
def test_the_command_line_trains_as_a_loop_by_hand(
    training: Training, tmp_path: Path, warm: WarmSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = command_line(training, tmp_path, "--headless", *["--resume"] * bool(training.ends))
    for end in (*training.ends, ""):
        monkeypatch.setenv("END_AT", end)
        ended = warm.run(*command)
        assert ended.returncode == STATUSES[end.partition(" ")[0]], ended.stderr.decode()
    # Of these amptui chooses the order: a permutation for each epoch.
    is_ours = training.recipe.get("data", "arrays") in ("arrays", "dataset")
    assert_same_run(tmp_path, Loop(training, order=order_of(tmp_path) if is_ours else ()).run())
