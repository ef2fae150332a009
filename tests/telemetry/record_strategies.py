"""Whatever records a run may emit, in hypothesis's words: for what has to hold of all of them."""

import math
from dataclasses import replace
from typing import Any, get_args

from hypothesis import strategies as st

from amptui.base import strictjson
from amptui.records.answers import Refusal, RequestKind, RequestMade, RequestRefused, RequestTaken
from amptui.records.findings import ModelCompiled, PhaseSeconds, StepTimed, UpdatesMeasured
from amptui.records.keeping import CheckpointWritten, KeepingChanged, ViewersChanged, WeightsSaved
from amptui.records.own_loop import LossForm
from amptui.records.run import (
    BlockFinished,
    EpochFinished,
    Note,
    PauseChanged,
    PhaseChanged,
    PrecisionChanged,
    Printed,
    RunFailed,
    RunFinished,
)
from amptui.records.steps import SAME, StepRecord, Steps
from tests.single_steps import joined
from tests.telemetry.memory_samples import memory
from tests.telemetry.rank_strategies import RANK_RECORDS, RANKS, TIMES
from tests.telemetry.record_samples import (
    backoff,
    compared,
    device,
    dropped,
    faster,
    flops,
    followed,
    growth,
    layer,
    measured,
    module,
    nonfinite,
    pair,
    parameter,
    product,
    resumed,
    run,
    skip,
    step,
    traced,
    window,
    xray,
)


def switch(number: int, previous: str, current: str, optimizer: str = "") -> PrecisionChanged:
    return PrecisionChanged(
        time=100 + number / 1000, step=number, previous=previous, current=current, optimizer=optimizer
    )


OPTIMIZERS = st.sampled_from(["", "", "", "D", "E"])

MODULES = st.builds(
    module,
    st.text(max_size=3),
    way=st.sampled_from(["forward", "backward"]),
    dtype=st.sampled_from(["float16", "float32"]),
    largest=st.floats(),
)

PHASES = st.builds(
    PhaseSeconds,
    name=st.sampled_from(["input", "forward", "backward", "clip", "optimizer"]),
    host_seconds=st.floats(),
    device_seconds=st.none() | st.floats(),
)

REQUESTS = st.builds(
    RequestMade,
    time=TIMES,
    number=st.integers(0, 5),
    kind=st.sampled_from(get_args(RequestKind)),
    precision=st.none() | st.sampled_from(["fp32", "fp8"]),
    precisions=st.lists(st.sampled_from(["fp32", "fp8"]), max_size=2).map(tuple),
    paused=st.none() | st.booleans(),
    reason=st.text(max_size=3),
)

SQUARES = st.none() | st.floats()

STEPS = st.builds(
    step,
    st.integers(0, 60),
    loss=st.none() | st.floats(),
    step_seconds=st.none() | st.floats(),
    samples=st.integers(0, 10**6),
    precision=st.sampled_from(["fp32", "fp16", "fp8", "mixed", "fp16 weights"]),
    epoch=st.integers(0, 3),
    skipped=st.booleans(),
    settling=st.booleans(),
    loss_scale=st.none() | st.floats(),
    growth_tracker=st.none() | st.integers(0, 3000),
    data_seconds=st.none() | st.floats(),
    grad_max=st.none() | st.floats() | st.floats(1e-6, 1e6),
    grad_norm=st.none() | st.floats(),
    optimizer=OPTIMIZERS,
    loss_form=st.sampled_from(get_args(LossForm)),
    micro_batches=st.integers(1, 4),
    time=TIMES,
)


@st.composite
def blocks(draw: st.DrawFn, steps: st.SearchStrategy[StepRecord] = STEPS) -> Steps:
    """A block of one to six steps, each measured as one of ``steps``."""
    first, *later = draw(st.lists(steps, min_size=1, max_size=6))
    same: dict[str, Any] = {name: getattr(first, name) for name in SAME}
    consecutive = (replace(item, step=step, **same) for step, item in enumerate(later, first.step + 1))
    block = joined([first, *consecutive])
    # The steps ended at times that a record may have.
    seconds = draw(
        st.lists(st.none() | st.floats(0, 1e5), min_size=block.count - 1, max_size=block.count - 1)
    )
    return replace(block, time=max(block.time, 1e6), step_seconds=[*block.step_seconds[:1], *seconds])


BLOCKS = blocks()

OTHER_RECORDS = st.one_of(
    RANK_RECORDS,
    st.builds(
        followed,
        OPTIMIZERS,
        step=st.integers(0, 60),
        model=st.sampled_from(["Generator", "D", ""]),
        replaces=st.sampled_from(["", "SGD"]),
        time=TIMES,
    ),
    st.builds(
        dropped,
        st.integers(0, 60),
        loss=st.none() | st.floats(),
        passes=st.integers(1, 3),
        optimizer=OPTIMIZERS,
    ),
    st.builds(
        run,
        world_size=RANKS,
        total_steps=st.none() | st.integers(0, 100),
        steps_per_epoch=st.none() | st.integers(0, 30),
        time=TIMES,
    ),
    st.builds(
        skip,
        st.integers(0, 60),
        loss_scale=st.floats(),
        loss=st.none() | st.floats(),
        kinds=st.sampled_from([(), ("nan",), ("inf", "nan", "inf")]),
        consecutive=st.integers(1, 9),
        optimizer=OPTIMIZERS,
    ),
    st.builds(backoff, st.integers(0, 60), st.floats(), OPTIMIZERS),
    st.builds(growth, st.integers(0, 60), st.floats(0, 1e6), OPTIMIZERS),
    st.builds(
        window,
        st.integers(0, 60),
        loss_scale=st.floats(),
        hypothetical=st.booleans(),
        first_exponent=st.integers(-60, 0),
        counts=st.lists(st.integers(0, 9), max_size=120).map(tuple),
        elements=st.integers(0, 100),
        zeros=st.integers(0, 100),
        flushed=st.integers(0, 9),
        overflowing=st.integers(0, 9),
        nonfinite=st.sampled_from([0, 0, 3]),
        worst=st.lists(
            st.builds(
                parameter,
                st.text(max_size=3),
                zeros=st.integers(0, 100),
                flushed=st.integers(0, 100),
                squares=SQUARES,
                flushed_squares=SQUARES,
            ),
            max_size=2,
        ).map(tuple),
        squares=SQUARES,
        flushed_squares=SQUARES,
        subnormal_squares=SQUARES,
    ),
    st.builds(
        traced,
        st.integers(0, 60),
        first=st.none() | MODULES,
        nearest=st.lists(MODULES, max_size=3).map(tuple),
        precision=st.sampled_from(["fp32", "fp16"]),
        loss_scale=st.none() | st.floats(),
        asked=st.booleans(),
    ),
    st.builds(
        xray,
        st.integers(0, 60),
        loss_fp32=st.floats(),
        loss_amp=st.floats(),
        precision=st.sampled_from(["fp16", "bf16"]),
        loss_scale=st.none() | st.floats(),
        layers=st.lists(
            st.builds(
                layer,
                st.text(max_size=3),
                st.none() | st.just(math.nan) | st.floats(-1, 1),
                norm=SQUARES,
                underflowing=SQUARES,
            ),
            max_size=4,
        ).map(tuple),
        saved_bytes_fp32=st.none() | st.integers(0, 10**9),
        saved_bytes_amp=st.none() | st.integers(0, 10**9),
        weights_bytes=st.integers(0, 10**9),
        random=st.booleans(),
    ),
    st.builds(
        compared,
        st.integers(0, 60),
        rows=st.builds(
            lambda row: (measured("fp32"), row),
            st.builds(
                faster,
                speedup=st.none() | st.floats(),
                speedup_low=st.none() | st.floats(),
                speedup_high=st.none() | st.floats(),
                peak_allocated_bytes=st.none() | st.integers(0, 10**9),
            ),
        ),
        pairs=st.lists(st.builds(pair, speedup=st.floats()), max_size=2).map(tuple),
        over=st.booleans(),
        reason=st.sampled_from(["limit", "stopped"]),
    ),
    st.builds(nonfinite, st.integers(0, 60), what=st.sampled_from(["loss", "buffer"]), optimizer=OPTIMIZERS),
    st.builds(
        switch,
        st.integers(0, 60),
        st.sampled_from(["fp32", "fp16"]),
        st.sampled_from(["fp32", "bf16"]),
        OPTIMIZERS,
    ),
    st.builds(
        device,
        TIMES,
        st.sampled_from(["fp32", "fp16"]),
        st.none() | st.integers(0, 9),
        st.none() | st.floats(0, 100),
        st.none() | st.floats(),
    ),
    st.builds(
        PauseChanged,
        time=TIMES,
        step=st.integers(0, 60),
        paused=st.booleans(),
        reason=st.sampled_from(["", "the loss scale fell"]),
    ),
    st.builds(PhaseChanged, time=TIMES, phase=st.sampled_from(["first step", "training", "validating"])),
    st.builds(
        RunFinished,
        time=TIMES,
        steps=st.integers(0, strictjson.MAX_COUNT),
        seconds=st.floats(),
        reason=st.just("done"),
    ),
    st.builds(
        EpochFinished,
        time=TIMES,
        step=st.integers(0, 60),
        epoch=st.integers(0, 3),
        seconds=st.none() | st.floats(),
        mean_loss=st.none() | st.floats(),
        validation=st.none(),
    ),
    st.builds(
        flops,
        st.sampled_from(["fp32", "fp16", "fp8"]),
        flops=st.integers(0, 10**18),
        samples=st.none() | st.sampled_from([0, 4, 256]),
        shapes_vary=st.booleans(),
        unaligned_flops=st.integers(0, 10**18),
        nchw_flops=st.integers(0, 10**18),
        unaligned=st.just((product(),)),
        uncounted=st.sampled_from([(), ("a",)]),
    ),
    st.builds(
        StepTimed,
        time=TIMES,
        step=st.integers(0, 60),
        precision=st.sampled_from(["fp32", "bf16"]),
        settling=st.booleans(),
        phases=st.lists(PHASES, max_size=3, unique_by=lambda phase: phase.name).map(tuple),
    ),
    st.builds(
        UpdatesMeasured,
        time=TIMES,
        step=st.integers(0, 60),
        ratios=st.dictionaries(st.sampled_from(["a", "b.c", ""]), st.floats()),
        sampled=st.lists(st.sampled_from(["a", "d"]), max_size=2).map(tuple),
        optimizer=st.sampled_from(["", "d"]),
    ),
    st.builds(
        ModelCompiled,
        time=TIMES,
        step=st.integers(0, 60),
        precision=st.sampled_from(["fp32", "bf16"]),
        training=st.booleans(),
        seconds=st.floats(),
        what=st.sampled_from(["first", "again", "graphs"]),
        reason=st.sampled_from(["", "size mismatch"]),
    ),
    st.builds(
        memory,
        st.sampled_from(["fp32", "fp16", "fp8"]),
        activations=st.none() | st.integers(0, 10**9),
        copies=st.none() | st.integers(0, 10**9),
        peak=st.none() | st.integers(0, 10**9),
        step=st.integers(0, 60),
    ),
    st.builds(
        BlockFinished,
        time=TIMES,
        step=st.integers(0, 60),
        precision=st.sampled_from(["fp32", "fp16"]),
        steps=st.integers(0, 60),
        peak_allocated_bytes=st.none() | st.integers(0, 10**9),
    ),
    st.builds(
        Note,
        time=TIMES,
        severity=st.sampled_from(["info", "warning", "error"]),
        text=st.text(min_size=1).filter(str.strip),
    ),
    st.builds(Printed, time=TIMES, stream=st.just("stdout"), text=st.text(max_size=9), live=st.booleans()),
    st.builds(
        CheckpointWritten,
        time=TIMES,
        step=st.integers(0, 60),
        name=st.just("step-000000040.pt"),
        size_bytes=st.integers(0, 10**12),
        reason=st.sampled_from(["asked", "epoch", "interval", "end"]),
        blocked_seconds=st.floats(),
        seconds=st.floats(),
    ),
    st.builds(
        WeightsSaved,
        time=TIMES,
        step=st.integers(0, 60),
        path=st.just("/home/me/mine.pt"),
        averaged=st.booleans(),
    ),
    st.builds(
        resumed,
        st.integers(0, 60),
        time=TIMES,
        device_name=st.sampled_from(["NVIDIA H200", "CPU"]),
        gpu_uuid=st.none() | st.just("GPU-1"),
        precision=st.sampled_from(["fp32", "fp16"]),
        lost_steps=st.integers(0, 60),
    ),
    st.builds(
        KeepingChanged,
        time=TIMES,
        what=st.sampled_from(["journal", "checkpoints"]),
        trouble=st.sampled_from(["", "journal: no space left on device"]),
    ),
    st.builds(
        ViewersChanged,
        time=TIMES,
        viewers=st.integers(0, 16),
        change=st.sampled_from(["attached", "detached", "hung up", "lost", "refused"]),
        detail=st.text(max_size=3),
    ),
    REQUESTS,
    st.builds(RequestTaken, time=TIMES, step=st.integers(0, 60), request=REQUESTS),
    st.builds(
        RequestRefused,
        time=TIMES,
        step=st.integers(0, 60),
        request=REQUESTS,
        reason=st.sampled_from(get_args(Refusal)),
        detail=st.text(max_size=3),
    ),
    st.builds(
        RunFailed,
        time=TIMES,
        step=st.integers(0, 60),
        error=st.text(min_size=1, max_size=9),
        traceback=st.text(max_size=9),
    ),
)

RECORDS = STEPS | BLOCKS | OTHER_RECORDS
