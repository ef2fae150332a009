"""Student's quantiles are those of the table (NIST/SEMATECH e-Handbook, table 1.3.6.7.2)."""

import pytest

from amptui.base.student import t_quantile

TABLE = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""At a confidence of 95%, for 1 to 30 degrees of freedom."""


OTHERS = ((0.99, 2, 9.925), (0.99, 7, 3.499), (0.9, 10, 1.812), (0.98, 3, 4.541), (0.95, 120, 1.980))


@pytest.mark.parametrize(
    ("confidence", "freedom", "t"), [*((0.95, freedom, t) for freedom, t in enumerate(TABLE, 1)), *OTHERS]
)
def test_quantiles_are_those_of_the_table(confidence: float, freedom: int, t: float) -> None:
    assert t_quantile(confidence, freedom) == pytest.approx(t, abs=6e-4)
