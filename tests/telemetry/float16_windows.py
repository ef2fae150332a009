"""Float16 histograms of gradients with given exponents."""

from typing import Any

from amptui.records.findings import Float16Window
from tests.telemetry.record_samples import window


def spread(exponents: dict[int, int], zeros: int = 0, scale: float = 65536.0) -> Float16Window:
    """A window of gradients that all lie in the middle of their bins."""
    return window(
        loss_scale=scale,
        first_exponent=-60,
        counts=tuple(exponents.get(exponent, 0) for exponent in range(-60, 41)),
        elements=sum(exponents.values()) + zeros,
        zeros=zeros,
        flushed=sum(count for exponent, count in exponents.items() if exponent <= -26),
        subnormal=sum(count for exponent, count in exponents.items() if -25 <= exponent < -14),
        overflowing=sum(count for exponent, count in exponents.items() if exponent >= 16),
    )


def losing(share: float, step: int = 600, **changes: Any) -> Float16Window:
    """A window of which this share of the norm underflows, half of its squares as subnormals."""
    half = share**2 / 2
    return window(step, **squares_of(flushed=half, subnormal=half), **changes)


def squares_of(*, flushed: float = 0.0, subnormal: float = 0.0, whole: float = 1.0) -> dict[str, Any]:
    """Sums of squares, as fields of a window or a parameter."""
    return {"squares": whole, "flushed_squares": flushed, "subnormal_squares": subnormal}
