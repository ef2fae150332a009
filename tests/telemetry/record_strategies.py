"""Whatever records a run of a few steps, optimizers and ranks may emit, in hypothesis's words."""

from hypothesis import strategies as st

from amptui.records.codec import MAX_SECONDS
from amptui.records.steps import Steps
from tests.record_values import ANY, RECORD_TYPES, ByName, records_of

STEP_NUMBERS = st.integers(0, 60)
RANKS = st.integers(0, 9)
PRECISIONS = st.sampled_from(["fp32", "fp16", "fp8", "mixed", "fp16 weights"])
SCALES = st.floats() | st.sampled_from([1.0, 65536.0])

NEAR: ByName = {
    **ANY,
    ("time", float): st.floats(0, MAX_SECONDS),
    **{(name, int): STEP_NUMBERS for name in ("step", "steps", "lost_steps")},
    **{(name, int): RANKS for name in ("rank", "ranks", "silent", "world_size")},
    **{(name, str): PRECISIONS for name in ("precision", "previous", "current", "baseline")},
    **{(name, float): SCALES for name in ("loss_scale", "previous", "current")},
    ("optimizer", str): st.sampled_from(["", "", "", "D", "E"]),
    ("epoch", int): st.integers(0, 3),
    ("samples", int): st.integers(0, 10**6),
    ("growth_tracker", int): st.integers(0, 3000),
    ("micro_batches", int): st.integers(1, 4),
    ("number", int): st.integers(0, 5),
    ("step_seconds", float): st.floats() | st.floats(0, 100),
    ("grad_max", float): st.floats() | st.floats(1e-6, 1e6),
    ("gpu_uuid", str): st.just("GPU-1"),
    ("device_name", str): st.sampled_from(["NVIDIA H200", "CPU"]),
    ("name", str): st.sampled_from(["", "a", "b.weight"]),
    ("text", str): st.text(min_size=1).filter(str.strip),
}
"""Values that meet: the same few steps, names and ranks again and again."""

BLOCKS = records_of(Steps, NEAR)
STEPS = BLOCKS.map(lambda block: block.part(0, 1))
OTHER_RECORDS = st.one_of([records_of(cls, NEAR) for cls in RECORD_TYPES if cls is not Steps])
RECORDS = STEPS | BLOCKS | OTHER_RECORDS
