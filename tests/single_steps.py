"""Another name of what :mod:`tests.builders` has."""

from tests.builders import SingleSteps, in_blocks, joined, one_by_one, read

__all__ = ["SingleSteps", "in_blocks", "joined", "one_by_one", "read"]
