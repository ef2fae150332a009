"""Runs that leave something in every part of a session, and sessions of them."""

import json
import math
from collections.abc import Iterable
from dataclasses import replace

from amptui.records.answers import RequestMade, RequestRefused, RequestTaken
from amptui.records.findings import (
    Float8Layers,
    LayerLeftOut,
    ModelCompiled,
    OperatorCount,
    PhaseSeconds,
    ReferenceAgreement,
    StepTimed,
)
from amptui.records.keeping import CheckpointWritten, KeepingChanged, ViewersChanged, WeightsSaved
from amptui.records.ranks import RankLost, RanksAwaited, RanksDisagree, RankStack, RankValue, StacksTaken
from amptui.records.run import (
    EpochFinished,
    Note,
    PauseChanged,
    PhaseChanged,
    Printed,
    Record,
    RunFailed,
    RunFinished,
    RunResumed,
    Validated,
    Validation,
)
from amptui.records.samples import HostSample
from amptui.telemetry.session import Session
from tests.builders import fold
from tests.builders import make_switch as switch
from tests.telemetry.float16_windows import squares_of
from tests.telemetry.memory_samples import memory
from tests.telemetry.record_samples import (
    compared,
    device,
    dropped,
    float8_window,
    flops,
    followed,
    growth,
    layer,
    module,
    nonfinite,
    pair,
    parameter,
    product,
    run,
    skip_row,
    step,
    steps,
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

ASKED = (
    RequestMade(time=104.0, number=7, kind="precision", precision="fp16"),
    RequestMade(time=104.0, number=8, kind="x-ray"),
    RequestMade(time=104.0, number=9, kind="comparison", precisions=("fp32", "fp16")),
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

BESIDE_BF16 = ReferenceAgreement(cosine=0.99999, relative_error=0.004, added_cosine=0.997, added_error=0.061)


EVERYTHING: tuple[Record, ...] = (
    PhaseChanged(time=99.0, phase="first step", detail="cuDNN"),
    run(config={"batch_size": 256, "betas": [0.9, 0.999], "clip": None}, versions={"torch": "2.11"}),
    RunResumed(
        time=100.0,
        step=0,
        checkpoint="step-000000000.pt",
        device="cuda:0",
        device_name=run().device_name,
        gpu_uuid=run().gpu_uuid,
        precision="fp32",
        versions={"torch": "2.11"},
    ),
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
    xray(
        105, operators=(OperatorCount(name="mm", dtype="float16", count=3),), output_dtypes={"a": "float16"}
    ),
    memory("fp16", copies=10**6, peak=10**9),
    compared(106, pairs=(pair(),)),
    Printed(time=101.0, stream="stderr", text="slow\n"),
    Note(time=101.0, severity="warning", text="something\nmore of it"),
    *(Note(time=101.0 + number, severity="info", text="again") for number in range(3)),
    CheckpointWritten(
        time=102.0,
        step=102,
        name="step-000000102.pt",
        size_bytes=10**8,
        reason="asked",
        blocked_seconds=0.01,
        seconds=0.4,
    ),
    WeightsSaved(time=102.4, step=102, path="/home/me/mine.pt", averaged=False),
    ModelCompiled(time=102.5, step=101, precision="fp16", training=True, seconds=2.0, what="first"),
    Float8Layers(
        time=102.5,
        step=101,
        precision="fp8",
        recipe="tensorwise",
        emulated=False,
        layers=1,
        names=("mlp.fc",),
        parameters=1040,
        left_out=(LayerLeftOut(name="head", kind="Linear", why="size", shape=(10, 64)),),
        left_out_count=1,
    ),
    float8_window(101, channel_error=0.9),
    xray(
        106,
        precision="fp8",
        loss_scale=None,
        reference="bf16",
        loss_reference=0.5005,
        layers=(layer("mlp.fc", 0.997, in_float8=True, reference=BESIDE_BF16),),
        operators=(OperatorCount(name="mm", dtype="bfloat16", count=3),),
        output_dtypes={"mlp.fc": "bfloat16"},
    ),
    Validated(time=102.7, step=102, epoch=1, validation=Validation(loss=0.5, accuracy=None, samples=10)),
    EpochFinished(
        time=103.0,
        step=102,
        epoch=1,
        seconds=2.0,
        mean_loss=0.5,
        validation=Validation(loss=0.4, accuracy=0.99, samples=100, metrics={"f1": 0.5}),
    ),
    ViewersChanged(time=104.0, viewers=2, change="attached"),
    RANKS.started(),
    *RANKS.samples(12),
    RanksDisagree(
        time=104.0, step=102, what="loss scale", count=1, most=65536.0, others=(RankValue(rank=1, value=1.0),)
    ),
    RanksAwaited(time=103.5, step=102, ranks=(1,), count=1, phase="after_step", seconds=10.0),
    StacksTaken(
        time=103.9, step=102, stacks=(RankStack(rank=0, phase="training", step=102, stack=""),), silent=(1,)
    ),
    RankLost(time=104.0, step=102, rank=1, host="node-1", cause="killed"),
    KeepingChanged(time=104.0, what="checkpoints", trouble="the disk is full"),
    *ASKED,
    RequestTaken(time=104.0, step=102, request=ASKED[0]),
    RequestRefused(time=104.0, step=102, request=ASKED[1], reason="failed", detail="out of memory"),
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
