"""Float8 layers for tests: emulated, and as on hardware, with torch's float8 operator for CPUs."""

import pytest

from amptui.engine.float8 import Float8Form, Float8Linears


def prepare_form(linears: Float8Linears, form: Float8Form) -> None:
    """Let ``linears`` be ready for ``form``; skip the test where torch has no float8 operator for CPUs."""
    trouble = linears.prepare(form)
    if trouble and form == "hardware":
        pytest.skip(f"this torch multiplies no float8 on a CPU: {trouble}")
    assert trouble == ""
