"""Student's quantiles are those of the table (NIST/SEMATECH e-Handbook, table 1.3.6.7.2)."""

import pytest

from amptui.base.student import t_quantile


@pytest.mark.parametrize(
    ("confidence", "freedom", "t"),
    [
        *((0.95, 1, 12.706), (0.95, 2, 4.303), (0.95, 3, 3.182), (0.95, 4, 2.776), (0.95, 10, 2.228)),
        *((0.95, 29, 2.045), (0.95, 120, 1.980), (0.9, 10, 1.812), (0.98, 3, 4.541), (0.99, 7, 3.499)),
    ],
)
def test_quantiles_are_those_of_the_table(confidence: float, freedom: int, t: float) -> None:
    assert t_quantile(confidence, freedom) == pytest.approx(t, abs=6e-4)
