"""Counts the batches of an epoch: reports skipped ones and raises an error if there are none."""

import time
from collections.abc import Callable, Iterator

from amptui.base.errors import DataError
from amptui.data.batches import Batch, Batches
from amptui.records.run import Note, Record, Severity


class BatchCount:
    """Counts the batches of training or validation data; emits notes.

    ``equal``: other ranks need as many batches, so that one that is None raises DataError.
    """

    def __init__(
        self, batches: Batches, emit: Callable[[Record], object], *, training: bool, equal: bool = False
    ) -> None:
        self._batches = batches
        self._emit = emit
        self._role = "training" if training else "validation"
        self._equal = equal
        self._reported_none = self._reported_length = False

    def watch(self, left: Iterator[Batch], *, epoch: int = 0, passed: int = 0) -> Iterator[Batch]:
        """Yield the batches of ``left``: the rest of ``epoch`` after its first ``passed`` batches.

        Validation has no ``epoch``. Raises DataError at the end of a training epoch without batches.
        """
        found = passed
        # A None among the passed batches was reported before the run was resumed.
        self._reported_none = self._reported_none or self._batches.dropped > 0
        for batch in left:
            found += 1
            self._report_none()
            yield batch
        self._report_none()
        self._report_end(epoch, found)

    def _report_none(self) -> None:
        if self._batches.dropped and self._equal:
            what = f"a {self._role} batch was None (from collate_fn?): all ranks must have as many batches"
            raise DataError(what, hint="let collate_fn return a batch")
        if self._batches.dropped and not self._reported_none:
            self._reported_none = True
            self._note("warning", f"a {self._role} batch was None (from collate_fn?): skipped and counted")

    def _report_end(self, epoch: int, found: int) -> None:
        dropped, length = self._batches.dropped, self._batches.batches_per_epoch
        if not found:
            self._refuse_empty(epoch, dropped)
        elif dropped:
            what = f"{dropped:,} of {found + dropped:,} {self._role} batches were None and were skipped"
            self._note("warning", f"epoch {epoch}: {what}" if epoch else what)
        total = found + dropped
        if length is None or self._reported_length or total in (0, length):
            return
        self._reported_length = True
        severity: Severity = "warning" if total < length else "info"
        has = "ended after" if total < length else "has"
        self._note(severity, f"the {self._role} data {has} {total:,} batches, but len() is {length:,}")

    def _refuse_empty(self, epoch: int, dropped: int) -> None:
        what = f"all {dropped:,} {self._role} batches were None" if dropped else f"no {self._role} batches"
        hint = "let collate_fn return batches" if dropped else "each iter() must yield at least one batch"
        if self._role == "training":
            raise DataError(f"epoch {epoch}: {what}", hint=hint)
        # An epoch without validation still counts.
        self._note("error", f"no validation: {what}; {hint}")

    def _note(self, severity: Severity, text: str) -> None:
        self._emit(Note(time=time.time(), severity=severity, text=text))
