"""What is said of the memory: what AMP changed, or why it changed little, from breakdowns and X-rays."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.diagnosis.memory_use import memory_sentences, other_bytes, saved_for_backward, sides, size_of
from amptui.diagnosis.speed import explanations
from amptui.records.findings import MemoryBreakdown
from amptui.records.run import PRECISIONS, Record
from amptui.telemetry.session import Session
from tests.telemetry.memory_samples import KEPT_BYTES, memory
from tests.telemetry.record_samples import device, run, steps, xray

MIB = 2**20

FP32 = memory("fp32", activations=1500 * MIB, peak=1850 * MIB)
FP16 = memory("fp16", activations=760 * MIB, copies=28 * MIB, peak=1138 * MIB, step=812)
ON_A_CPU = (memory("fp32"), memory("bf16", copies=28 * MIB))


def told(*breakdowns: MemoryBreakdown) -> str:
    (text,) = memory_sentences(breakdowns, None)
    return text


# ------------------------------------------------------------------------------------- sentences


def test_a_peak_that_fell_is_split_into_what_changed_and_what_did_not() -> None:
    assert told(FP32, FP16) == (
        "peak fell by 712 MiB: activations -740 MiB, cast copies of weights +28.0 MiB; "
        "weights, gradients, optimizer state, buffers (224 MiB) stay float32"
    )


def test_where_weights_dominate_the_peak_hardly_moves_and_it_is_said_why() -> None:
    full = memory("fp32", activations=20 * MIB, peak=250 * MIB)
    amp = memory("fp16", activations=8 * MIB, copies=14 * MIB, peak=252 * MIB)
    assert told(full, amp) == (
        "peak barely changed: 224 MiB of 252 MiB are weights, gradients, optimizer state, buffers, "
        "which stay float32; activations -12.0 MiB, cast copies of weights +14.0 MiB"
    )


def test_where_data_on_the_device_dominates_it_is_not_called_the_model_s() -> None:
    full = memory("fp32", activations=20 * MIB, peak=1024 * MIB)
    amp = memory("fp16", activations=10 * MIB, copies=10 * MIB, peak=1024 * MIB)
    assert told(full, amp).startswith("peak barely changed: 780 MiB of 1.00 GiB is other memory: ")


def test_a_peak_that_rose_says_so() -> None:
    full = memory("fp32", activations=2 * MIB, peak=226 * MIB)
    amp = memory("fp16", activations=2 * MIB, copies=28 * MIB, peak=254 * MIB)
    text = told(full, amp)
    assert text.startswith("peak rose by 28.0 MiB: 224 MiB of 254 MiB are weights, ")
    assert text.endswith("; activations the same, cast copies of weights +28.0 MiB")


def test_before_amp_ran_it_is_said_what_it_can_change() -> None:
    assert told(FP32) == (
        "AMP can shrink only activations, which take 1.46 / 1.81 GiB here; "
        "weights, gradients, optimizer state, buffers (224 MiB) stay float32"
    )


def test_amp_alone_has_nothing_to_be_compared_with() -> None:
    assert memory_sentences((FP16,), None) == ()


def test_weights_of_another_dtype_are_not_called_float32() -> None:
    halved = [replace(kind, dtype="bfloat16") if kind.kind == "weights" else kind for kind in FP16.kinds]
    assert told(FP32, replace(FP16, kinds=tuple(halved))).endswith("(224 MiB) stay as they are")


def test_only_what_a_run_has_is_named() -> None:
    bare = [kind for kind in FP32.kinds if kind.kind in ("weights", "gradients")]
    full, amp = (replace(item, kinds=tuple(bare)) for item in ON_A_CPU)
    assert memory_sentences((full, amp), None)[0] == "weights, gradients (112 MiB) stay float32"


def test_on_a_cpu_it_is_said_what_is_not_measured() -> None:
    remaining, missing = memory_sentences(ON_A_CPU, None)
    assert remaining == (
        "weights, gradients, optimizer state, buffers (224 MiB) stay float32; "
        "cast copies of weights +28.0 MiB"
    )
    assert missing == "activations and peak are not measured on a CPU"
    assert memory_sentences(ON_A_CPU, None, {"x-ray"})[1] == (
        "activations and peak are not measured on a CPU; press x to measure what is saved for backward"
    )


def test_an_xray_tells_what_the_backward_pass_keeps() -> None:
    one_xray = xray(precision="bf16", saved_bytes_fp32=236 * MIB, saved_bytes_amp=121 * MIB)
    _, remaining = memory_sentences(ON_A_CPU, one_xray)
    assert remaining == (
        "saved for backward (X-ray): 236 MiB in FP32, 121 MiB in AMP bf16 (-49%), "
        "up to 28.0 MiB of it cast copies of weights"
    )


def test_an_xray_of_a_precision_without_a_breakdown_says_nothing_of_its_copies() -> None:
    one_xray = xray(precision="fp16", saved_bytes_fp32=236 * MIB, saved_bytes_amp=300 * MIB)
    assert memory_sentences(ON_A_CPU, one_xray)[1].endswith("236 MiB in FP32, 300 MiB in AMP fp16 (+27%)")


def test_what_an_emulation_keeps_is_not_told() -> None:
    one_xray = xray(precision="fp8-emulated", saved_bytes_fp32=236 * MIB, saved_bytes_amp=300 * MIB)
    assert len(memory_sentences(ON_A_CPU, one_xray)) == 1
    assert saved_for_backward(one_xray) == ""


def test_cast_copies_that_eat_up_the_saving_leave_the_same() -> None:
    one_xray = xray(precision="fp16", saved_bytes_fp32=68_300, saved_bytes_amp=68_400)
    assert memory_sentences(ON_A_CPU, one_xray)[1].endswith("in AMP fp16 (the same)")


def test_an_xray_that_could_not_measure_adds_nothing() -> None:
    assert len(memory_sentences((FP32, FP16), xray(saved_bytes_fp32=None, saved_bytes_amp=None))) == 1


def test_before_the_first_breakdown_nothing_is_said() -> None:
    assert memory_sentences((), xray()) == ()


SIZES = st.integers(0, 2**40)


@given(activations=st.tuples(SIZES, SIZES), copies=st.none() | SIZES, beyond=st.tuples(SIZES, SIZES))
def test_every_pair_has_one_sentence_and_no_word_for_what_is_missing(
    activations: tuple[int, int], copies: int | None, beyond: tuple[int, int]
) -> None:
    full = memory("fp32", activations=activations[0], peak=KEPT_BYTES + activations[0] + beyond[0])
    whole = KEPT_BYTES + activations[1] + (copies or 0) + beyond[1]
    amp = memory("fp16", activations=activations[1], copies=copies, peak=whole)
    assert (other_bytes(full), other_bytes(amp)) == beyond
    text = told(full, amp)
    assert text.startswith(("peak fell by ", "peak barely changed: ", "peak rose by "))
    assert "n/a" not in text
    assert ("cast copies" in text) == bool(copies)


def test_the_rest_of_a_peak_that_was_not_measured_is_not_zero() -> None:
    assert other_bytes(ON_A_CPU[0]) is None
    assert size_of(ON_A_CPU[0], "activations") is None
    assert size_of(ON_A_CPU[0], "weights", "gradients") == 112 * MIB


def test_the_newest_of_each_side_are_compared() -> None:
    older, newer = replace(FP32, precision="ieee", step=5), replace(FP16, precision="bf16", step=900)
    both_sides = sides((FP32, older, FP16, newer))
    assert (both_sides.full, both_sides.low) == (FP32, newer)


def test_fp8_is_beside_bf16_and_emulated_beside_nothing() -> None:
    bf16, fp8 = replace(FP16, precision="bf16"), replace(FP16, precision="fp8", step=5)
    emulated = replace(fp8, precision="fp8-emulated")
    assert sides((FP32, bf16, fp8), "fp8") == (bf16, fp8)
    assert sides((FP32, bf16, fp8), "bf16") == (FP32, bf16)
    assert sides((FP32, bf16, emulated), "fp8-emulated") == (None, None)
    (sentence,) = memory_sentences((FP32, bf16, fp8), None, low="fp8")
    assert sentence.startswith("peak barely changed")
    assert memory_sentences((FP32, bf16), None, low="fp8") == ()
    assert memory_sentences((FP32, bf16, emulated), None, low="fp8-emulated") == ()


# -------------------------------------------------------------------------------- in a session


def folded(records: Sequence[MemoryBreakdown]) -> tuple[MemoryBreakdown, ...]:
    session = Session()
    session.fold([run(), *records])
    return session.view().memory


def test_the_view_has_the_newest_of_each_precision_in_the_usual_order() -> None:
    later = replace(FP32, step=900)
    assert folded([FP16, FP32, later]) == (later, FP16)
    assert folded([]) == ()


@given(names=st.lists(st.sampled_from(PRECISIONS), max_size=12))
def test_the_order_does_not_depend_on_the_order_of_arrival(names: list[str]) -> None:
    flops = folded([memory(name, step=number) for number, name in enumerate(names)])
    assert [element.precision for element in flops] == [name for name in PRECISIONS if name in names]
    assert all(names[element.step] == element.precision for element in flops)


@pytest.mark.parametrize("xray_first", [True, False])
def test_a_saving_that_did_not_come_is_explained_by_the_breakdowns_rather_than_the_xray(
    xray_first: bool,
) -> None:
    full = memory("fp32", activations=20 * MIB, peak=250 * MIB)
    amp = memory("fp16", activations=8 * MIB, copies=14 * MIB, peak=248 * MIB)
    result: list[Record] = [xray(), full, amp] if xray_first else [full, amp, xray()]
    both = (*steps(1, 30), *steps(31, 60, precision="fp16", step_seconds=0.002))
    peaks = (device(1.0, "fp32", 250 * MIB), device(1.0, "fp16", 248 * MIB))
    session = Session()
    session.fold([run(), *both, *peaks, *result])
    (text,) = explanations(session.view())
    assert text == (
        "1% less peak memory: 224 MiB of 248 MiB are weights, gradients, optimizer state, buffers, "
        "which stay float32; activations -12.0 MiB, cast copies of weights +14.0 MiB"
    )
