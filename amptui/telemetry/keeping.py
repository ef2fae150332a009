"""What of the run is kept, and how many screens watch it."""

from dataclasses import dataclass

from amptui.records import CheckpointWritten, KeepingChanged, ViewersChanged


@dataclass(slots=True, eq=False)
class Keeping:
    """The newest checkpoint, what is not being kept now, and the number of screens."""

    checkpoint: CheckpointWritten | None = None
    not_kept: tuple[str, ...] = ()
    viewers: int = 0

    def change(self, record: KeepingChanged) -> None:
        """Take in that something is not kept any more, or is again."""
        others = tuple(what for what in self.not_kept if what != record.what)
        self.not_kept = (*others, record.what) if record.trouble else others

    def change_viewers(self, record: ViewersChanged) -> None:
        """Take in that a screen came or went."""
        self.viewers = record.viewers

    def resume_after(self, step: int) -> None:
        """Another process goes on after ``step``: it keeps what it can, and nobody watches it yet."""
        self.not_kept, self.viewers = (), 0
        if self.checkpoint is not None and self.checkpoint.step > step:
            self.checkpoint = None
