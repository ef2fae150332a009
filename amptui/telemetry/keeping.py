"""Which parts of the run are being saved, and how many screens watch it."""

from dataclasses import dataclass

from amptui.records import CheckpointWritten, KeepingChanged, ViewersChanged


@dataclass(slots=True, eq=False)
class Keeping:
    """The newest checkpoint, what is currently not saved, and the number of screens."""

    checkpoint: CheckpointWritten | None = None
    not_kept: tuple[str, ...] = ()
    viewers: int = 0

    def change(self, record: KeepingChanged) -> None:
        """Something is no longer saved, or is saved again."""
        others = tuple(what for what in self.not_kept if what != record.what)
        self.not_kept = (*others, record.what) if record.trouble else others

    def change_viewers(self, record: ViewersChanged) -> None:
        """A screen attached or detached."""
        self.viewers = record.viewers

    def resume_after(self, step: int) -> None:
        """Another process continues after ``step``: no save has failed yet, and nobody watches."""
        self.not_kept, self.viewers = (), 0
        if self.checkpoint is not None and self.checkpoint.step > step:
            self.checkpoint = None
