"""What a rank that agrees with others has to know of them: that they are there, and what to do if not."""

from collections.abc import Iterator
from contextlib import contextmanager

from amptui.ranks.agreement.orders import OrderBoard


class OtherRanks:
    """They never end, and nobody looks after their progress."""

    def check_others(self) -> None:
        """Raise what this rank's training is to end with if another one has ended."""

    def explain_lost(self, error: Exception) -> OrderBoard | Exception:
        """The board for all to go on at after ``error``, which the last one raised; or what to end with."""
        return error

    @contextmanager
    def waiting(self, *, idle: bool = False) -> Iterator[None]:  # noqa: ARG002 - for those that look
        """While entered, this rank waits for others, and makes none wait; ``idle``: for no rank."""
        yield
