"""Another name of what :mod:`tests.builders` has."""

from tests.builders import of
from tests.builders import recorded as records

__all__ = ["of", "records"]
