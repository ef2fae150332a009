"""Runs that leave something in every part of a session, and sessions of them."""

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from amptui.records import codec
from amptui.records.findings import PhaseSeconds, StepTimed
from amptui.records.run import (
    Note,
    PauseChanged,
    PhaseChanged,
    Record,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
)
from amptui.records.samples import HostSample
from amptui.records.steps import Steps
from amptui.telemetry.session import Session
from tests.builders import fold, make_resumed
from tests.builders import make_started as run
from tests.builders import make_step as step
from tests.builders import make_steps as steps
from tests.builders import make_switch as switch
from tests.telemetry.record_samples import (
    compared,
    device,
    dropped,
    flops,
    followed,
    growth,
    memory,
    module,
    nonfinite,
    parameter,
    product,
    skip_row,
    squares_of,
    traced,
    window,
    xray,
)
from tests.telemetry.simulated_ranks import SimulatedRanks

TRACED = traced(613, first=module("features.12", largest=math.inf))

TIMED = StepTimed(
    time=100.02,
    step=20,
    precision="fp32",
    settling=False,
    phases=(
        PhaseSeconds(name="input", host_seconds=1e-4, device_seconds=2e-4),
        PhaseSeconds(name="forward", host_seconds=1e-3, device_seconds=None),
    ),
)

RANKS = SimulatedRanks(2, 1, slow="compute", slow_rank=1)

GAN: tuple[Record, ...] = (
    followed("discriminator"),
    followed("", kind="SGD", model="Generator"),
    *steps(1, 8, optimizer="discriminator", precision="fp16", loss_form="sum", micro_batches=2),
    step(9, optimizer="discriminator", loss=None, loss_form="no backward", precision="mixed", grad_max=0.5),
    *skip_row(8, 1, 65536.0, optimizer="discriminator"),
    growth(8, 32768.0, optimizer="discriminator"),
    nonfinite(9, optimizer="discriminator"),
    switch(10, "mixed", "fp32", optimizer="discriminator"),
    dropped(9, optimizer="discriminator"),
    dropped(60, loss=None, passes=1),
)
"""A second optimizer beside the first."""

_LINES = Path(__file__).parents[1].joinpath("journal_lines.jsonl").read_text(encoding="ascii").splitlines()

STORED = tuple(
    record
    for record in map(codec.loads, _LINES)
    if record is not None
    and not isinstance(record, RunStarted | RunResumed | PauseChanged | RunFinished | RunFailed | Steps)
)
"""A record of each other type, as the journal's format has it."""

EVERYTHING: tuple[Record, ...] = (
    PhaseChanged(time=99.0, phase="first step", detail="cuDNN"),
    run(config={"batch_size": 256, "betas": [0.9, 0.999], "clip": None}, versions={"torch": "2.11"}),
    make_resumed(0, time=100.0, versions={"torch": "2.11"}),
    PhaseChanged(time=100.0, phase="training"),
    *steps(1, 30, grad_max=0.25, losses={"ce": 0.4, "kl": math.nan}),
    *(replace(TIMED, step=number) for number in range(20, 27)),
    flops("fp16", unaligned_flops=10**9, unaligned=(product(),)),
    device(100.031, "fp32", 2000, 50.0, 1000.0),
    *GAN,
    *steps(31, 60),
    replace(device(112.0, "fp32", 2000, 60.0, 4000.0), host=HostSample(cpu_percent=12.5), note="no fans"),
    memory("fp32", activations=10**9, peak=10**10),
    switch(61, "fp32", "fp16"),
    *steps(61, 63, precision="fp16", settling=True),
    *steps(64, 90, precision="fp16", grad_max=math.inf),
    growth(90, 65536.0),
    *skip_row(91, 12, 131072.0, kinds=("inf", "nan")),
    *steps(91, 102, precision="fp16", skipped=True, loss=math.nan),
    replace(TRACED, step=102),
    nonfinite(103, what="gradient", names=("a.weight",), kinds=("inf",)),
    window(104, worst=(parameter("a.weight", flushed=3),), **squares_of(flushed=0.5)),
    xray(105, output_dtypes={"a": "float16"}),
    memory("fp16", peak=10**9),
    compared(106),
    *(Note(time=101.0 + number, severity="info", text="again") for number in range(3)),
    RANKS.started(),
    *RANKS.samples(12),
    *STORED,
    PhaseChanged(time=104.0, phase="training"),
    *steps(103, 105, precision="fp16"),
    device(104.0, "fp16", 1500, 60.0, 5000.0),
)
"""A run in which every class that a session is made of has something to hold."""

ENDS: tuple[Record, ...] = (
    RunFinished(time=105.0, steps=102, seconds=5.0, reason="done"),
    RunFailed(time=105.0, step=102, error="out of memory", traceback="Traceback ..."),
    PauseChanged(time=105.0, step=102, paused=True, reason="the loss scale fell", cause="loss scale"),
)


def session_of(records: Iterable[Record], run_dir: str = "runs/a") -> Session:
    return fold(records, run_dir)


def restored_from(text: str) -> Session:
    session = Session()
    session.restore(json.loads(text))
    return session
