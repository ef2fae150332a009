"""The table of keys: no press has two actions, and the footer and a run have those that work."""

from amptui.records.answers import REQUEST_KINDS
from amptui.records.run import PRECISIONS
from amptui.tui.keys import KEYS, footer_hints, keys_of


def test_no_press_is_bound_to_two_actions() -> None:
    presses = [press for key in KEYS for press in key.presses]
    assert len(presses) == len(set(presses))


def test_the_footer_names_what_p_switches_to() -> None:
    unknown, in_amp = dict(footer_hints(KEYS)), dict(footer_hints(KEYS, switches_to="fp32"))
    assert (unknown["p"], in_amp["p"]) == ("AMP", "FP32")
    assert {**in_amp, "p": "AMP"} == unknown
    words = [dict(footer_hints(KEYS, switches_to=name))["p"] for name in PRECISIONS]
    assert words == ["FP32", "FP32 (TF32 off)", "TF32", "fp16", "bf16", "FP8", "FP8"]


def test_a_run_has_the_keys_of_what_it_takes() -> None:
    assert keys_of(REQUEST_KINDS) == KEYS
    left_out = {key.label for key in KEYS} - {key.label for key in keys_of(frozenset({"stop"}))}
    assert left_out == {"p", "space", "s", "m", "c", "x", "n"}
    assert {key.label for key in keys_of(frozenset({"precision"}))} >= {"p", "m", "d", "q"}
