"""A journal whose every text tries to be markup, and which has one of each kind of record."""

from collections.abc import Iterator

from amptui.records.findings import MemoryBreakdown, MemoryKind, PhaseSeconds, StepTimed
from amptui.records.run import (
    DataInfo,
    EpochFinished,
    Note,
    PauseChanged,
    PrecisionChanged,
    Printed,
    Record,
    RunFailed,
    Validation,
)
from tests.telemetry import record_samples as samples

EVIL = (
    '</script></style></title>--><script>window.owned=1</script><img src=x onerror="window.owned=1">"\'`&lt;'
)
"""Would be markup and run in each place that a page has for text."""


def records() -> Iterator[Record]:
    """A short run in two precisions, everything that can be a text in it is hostile."""
    yield samples.run(
        model=EVIL,
        device=EVIL,
        device_name=EVIL,
        unsupported={EVIL: EVIL},
        config={EVIL: EVIL, "nested": {EVIL: [EVIL]}},
        versions={EVIL: EVIL},
        hardware={EVIL: EVIL},
        data=DataInfo(name=EVIL, real=False, samples=3),
        precision=EVIL,
    )
    yield from samples.steps(1, 30, precision=EVIL, losses={EVIL: 1.0, "b": 2.0}, grad_max=0.1)
    yield PrecisionChanged(time=100.1, step=31, previous=EVIL, current="fp16")
    yield from samples.steps(31, 60, precision="fp16", losses={EVIL: 1.0, "b": 2.0}, grad_max=0.1)
    yield samples.device(100.2, "fp16", 1, 50.0)
    yield samples.skip(60, names=(EVIL,), count=3)
    yield samples.nonfinite(60, names=(EVIL,))
    yield samples.window(60, worst=(samples.parameter(EVIL),))
    module = samples.module(EVIL, kind=EVIL, dtype=EVIL)
    yield samples.traced(60, first=module, nearest=(module,), precision=EVIL)
    yield samples.xray(60, layers=(samples.layer(EVIL, 0.5),), precision="fp16", output_dtypes={EVIL: EVIL})
    phase = PhaseSeconds(name="forward", host_seconds=0.1, device_seconds=None)
    yield StepTimed(time=101.0, step=60, precision=EVIL, settling=False, phases=(phase,))
    kind = MemoryKind(kind="weights", dtype=EVIL, size_bytes=5)
    yield MemoryBreakdown(time=101.0, step=60, precision=EVIL, kinds=(kind,), peak_allocated_bytes=None)
    product = samples.product(EVIL)
    yield samples.flops("fp16", step=60, unaligned_flops=10**9, unaligned=(product,), uncounted=(EVIL,))
    yield EpochFinished(
        time=101.0,
        step=60,
        epoch=1,
        seconds=1.0,
        mean_loss=0.4,
        validation=Validation(loss=0.5, accuracy=0.9, samples=10, metrics={EVIL: 0.1}),
    )
    yield PauseChanged(time=101.5, step=60, paused=True, reason=f"{EVIL}\n{EVIL}")
    yield Note(time=102.0, severity="error", text=f"{EVIL}\n{EVIL}")
    yield Printed(time=102.0, stream="stdout", text=EVIL)
    yield RunFailed(time=103.0, step=60, error=f"{EVIL}\n{EVIL}", traceback=EVIL)
