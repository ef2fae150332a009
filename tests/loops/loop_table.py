"""Counts what generated examples showed, by form."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.loops.loop_mismatches import Mismatch, Result


@dataclass
class Tally:
    """What the examples of one test showed."""

    results: list[Result] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """A row for each form, and below them how often each thing was recorded otherwise than it was."""
        yield f"{'form':<48}{'examples':>9}{'mismatch':>9}{'steps':>8}{'no loss':>8}{'unknown':>8}"
        forms = sorted({form for result in self.results for form in result.example.forms})
        for form in forms:
            yield self._row(form, [result for result in self.results if form in result.example.forms])
        yield self._row("all", self.results)
        kinds = Counter(mismatch.what for result in self.results for mismatch in _first_of_kind(result))
        yield from (f"  examples with a mismatch in {what}: {count}" for what, count in kinds.most_common())

    @staticmethod
    def _row(form: str, results: list[Result]) -> str:
        bad = sum(bool(result.mismatches) for result in results)
        steps, nulls = sum(result.steps for result in results), sum(result.nulls for result in results)
        unknown = sum(result.unknown for result in results)
        return f"{form:<48}{len(results):>9}{bad:>9}{steps:>8}{nulls:>8}{unknown:>8}"


def _first_of_kind(result: Result) -> list[Mismatch]:
    return [*{mismatch.what: mismatch for mismatch in reversed(result.mismatches)}.values()]
