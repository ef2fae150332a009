"""Quantiles of Student's t: Python has none, and scipy, which does, is 113 MB and a second of import."""

import math
from functools import cache

_BISECTIONS = 200
"""Halvings after which no float lies between the two ends."""


@cache
def t_quantile(confidence: float, freedom: int) -> float:
    """The t that Student's distribution keeps within, to both sides, with a probability of ``confidence``."""
    low, high = 0.0, 1.0
    while _within(high, freedom) < confidence:
        high *= 2
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """The probability that ``|T| < t`` (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, odd = math.cos(angle), freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for number in range(2 + odd, freedom - 1, 2):
        term *= cosine**2 * (number - 1) / number
        total += term
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total
