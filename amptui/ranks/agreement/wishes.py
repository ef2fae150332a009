"""What rank 0's training wants of all ranks without having been asked."""

from dataclasses import dataclass


@dataclass(slots=True)
class Wishes:
    """Some of it; false if there is nothing."""

    turn: str = ""
    """The precision of a comparison's next block."""
    probes: int = 0
    """What to measure in the next step, as bits."""
    checkpoint: bool = False
    hashes: bool = False
    """That all hash their weights."""

    def __bool__(self) -> bool:
        return bool(self.turn or self.probes or self.checkpoint or self.hashes)

    def take(self, newer: "Wishes") -> None:
        """Want what is in ``newer`` too, which is then empty."""
        self.turn = newer.turn or self.turn
        self.probes |= newer.probes
        self.checkpoint |= newer.checkpoint
        self.hashes |= newer.hashes
        newer.clear()

    def clear(self) -> None:
        """Want nothing."""
        self.turn, self.probes, self.checkpoint, self.hashes = "", 0, False, False
