"""Fewer examples for laws of which each takes a tenth of a second."""

from hypothesis import settings

COSTLY = settings(max_examples=max(8, settings().max_examples // 4))
"""A fourth of what the profile has: 50 with ``thorough``."""
