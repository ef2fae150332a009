"""A whole journal as an export shows it: the session's view, and what a session does not keep."""

from collections.abc import Sequence

from amptui.records.run import EpochFinished, Record, Validated
from amptui.records.steps import Steps
from amptui.telemetry.optimizers import FIRST
from amptui.telemetry.session import Session
from amptui.telemetry.view import SessionView


class RecordedRun:
    """Collects the records of a journal in order; read the properties after the last one."""

    def __init__(self, name: str, folder: str) -> None:
        self.name = name
        """The run's name, from its files."""
        self.steps = 0
        """Steps in the journal; a step that was repeated after a resume counts twice."""
        self.validations: list[EpochFinished | Validated] = []
        """The records with a validation."""
        self.passed_over = ""
        """What of the journal could not be read, in one line."""
        self._session = Session(folder)

    @property
    def view(self) -> SessionView:
        """The view at the end of the journal, its first optimizer in front."""
        return self._session.view(FIRST)

    @property
    def other_views(self) -> list[SessionView]:
        """The same with each of the other optimizers in front."""
        return [self._session.view(other.name) for other in self.view.optimizers if other.name != FIRST]

    def add(self, records: Sequence[Record]) -> None:
        """Add the next records."""
        self.steps += sum(record.count for record in records if isinstance(record, Steps))
        self._session.fold(records)
        self.validations += [
            record
            for record in records
            if isinstance(record, EpochFinished | Validated) and record.validation is not None
        ]
