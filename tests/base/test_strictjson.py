"""Any value as plain JSON."""

import math

from hypothesis import given

from amptui.base.strictjson import plain
from amptui.records.run import Validation
from tests.record_values import JSON_VALUES


@given(value=JSON_VALUES)
def test_plain_keeps_json_types(value: object) -> None:
    assert plain(value) == value


def test_plain_converts_dataclasses_and_nonfinite_numbers() -> None:
    value = {"validation": Validation(loss=math.inf, accuracy=None, samples=10**9)}
    assert plain(value) == {"validation": {"loss": "inf", "accuracy": None, "samples": 10**9, "metrics": {}}}
