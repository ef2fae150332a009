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


def records(text: str = EVIL) -> Iterator[Record]:
    """A short run in two precisions, in which everything that can be a text is ``text``."""
    yield samples.run(
        model=text,
        device=text,
        device_name=text,
        unsupported={text: text},
        config={text: text, "nested": {text: [text]}},
        versions={text: text},
        hardware={text: text},
        data=DataInfo(name=text, real=False, samples=3),
        precision=text,
    )
    yield from samples.steps(1, 30, precision=text, losses={text: 1.0, "b": 2.0}, grad_max=0.1)
    yield PrecisionChanged(time=100.1, step=31, previous=text, current="fp16")
    yield from samples.steps(31, 60, precision="fp16", losses={text: 1.0, "b": 2.0}, grad_max=0.1)
    yield samples.device(100.2, "fp16", 1, 50.0)
    yield samples.skip(60, names=(text,), count=3)
    yield samples.nonfinite(60, names=(text,))
    yield samples.window(60, worst=(samples.parameter(text),))
    module = samples.module(text, kind=text, dtype=text)
    yield samples.traced(60, first=module, nearest=(module,), precision=text)
    yield samples.xray(60, layers=(samples.layer(text, 0.5),), precision="fp16", output_dtypes={text: text})
    phase = PhaseSeconds(name="forward", host_seconds=0.1, device_seconds=None)
    yield StepTimed(time=101.0, step=60, precision=text, settling=False, phases=(phase,))
    kind = MemoryKind(kind="weights", dtype=text, size_bytes=5)
    yield MemoryBreakdown(time=101.0, step=60, precision=text, kinds=(kind,), peak_allocated_bytes=None)
    product = samples.product(text)
    yield samples.flops("fp16", step=60, unaligned_flops=10**9, unaligned=(product,), uncounted=(text,))
    yield EpochFinished(
        time=101.0,
        step=60,
        epoch=1,
        seconds=1.0,
        mean_loss=0.4,
        validation=Validation(loss=0.5, accuracy=0.9, samples=10, metrics={text: 0.1}),
    )
    yield PauseChanged(time=101.5, step=60, paused=True, reason=f"{text}\n{text}")
    yield Note(time=102.0, severity="error", text=f"{text}\n{text}")
    yield Printed(time=102.0, stream="stdout", text=text)
    yield RunFailed(time=103.0, step=60, error=f"{text}\n{text}", traceback=text)
