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
        count, batches = passed, self._batches
        # A None among the passed batches was reported before the run was resumed.
        self._reported_none = self._reported_none or batches.dropped > 0
        for batch in left:
            count += 1
            if batches.dropped:
                self._report_none()
            yield batch
        if batches.dropped:
            self._report_none()
        dropped, length = batches.dropped, batches.batches_per_epoch
        total = count + dropped
        if not count:
            kind = f"{self._role} batches"
            what = f"all {dropped:,} {kind} were None" if dropped else f"no {kind}"
            hint = "let collate_fn return batches" if dropped else "each iter() must yield at least one batch"
            if self._role == "training":
                raise DataError(f"epoch {epoch}: {what}", hint=hint)
            self._note("error", f"no validation: {what}; {hint}")  # an epoch without one still counts
        elif dropped:
            what = f"{dropped:,} of {total:,} {self._role} batches were None and were skipped"
            self._note("warning", f"epoch {epoch}: {what}" if epoch else what)
        if length is None or self._reported_length or total in (0, length):
            return
        self._reported_length = True
        severity: Severity = "warning" if total < length else "info"
        has = "ended after" if total < length else "has"
        self._note(severity, f"the {self._role} data {has} {total:,} batches, but len() is {length:,}")

    def _report_none(self) -> None:
        if self._equal:
            what = f"a {self._role} batch was None (from collate_fn?): all ranks must have as many batches"
            raise DataError(what, hint="let collate_fn return a batch")
        if not self._reported_none:
            self._reported_none = True
            self._note("warning", f"a {self._role} batch was None (from collate_fn?): skipped and counted")

    def _note(self, severity: Severity, text: str) -> None:
        self._emit(Note(time=time.time(), severity=severity, text=text))
