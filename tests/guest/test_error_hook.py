"""Whatever the order in which monitors open and close, ``sys.excepthook`` is what it is without them."""

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

import pytest

from amptui.guest.monitor import take_errors, take_no_errors

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


class Script:
    """A script with a hook of its own, and what hooks and monitors were told."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.takers = {name: self._taker(name) for name in "abc"}
        sys.excepthook = self._own

    def _taker(self, name: str) -> Callable[[BaseException], object]:
        return lambda _error: self.calls.append(name)

    def _own(self, *_: object) -> None:
        self.calls.append("script")

    def add_hook(self) -> Hook:
        """Somebody else's, which passes on what it gets."""
        before = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None, /) -> None:
            self.calls.append("other")
            before(kind, error, trace)

        sys.excepthook = hook
        return hook

    def die(self) -> list[str]:
        """Who is told of an error, in order, each of them once."""
        self.calls.clear()
        sys.excepthook(ValueError, ValueError(), None)
        return sorted(set(self.calls))


@pytest.fixture
def script() -> Iterator[Script]:
    before = sys.excepthook
    yield Script()
    sys.excepthook = before


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_in_any_order_nothing_is_left(order: Sequence[str], script: Script) -> None:
    before = sys.excepthook
    for name in "abc":
        take_errors(script.takers[name])
    is_open = set("abc")
    for name in order:
        assert script.die() == [*sorted(is_open), "script"]
        assert script.calls.count("script") == 1
        take_no_errors(script.takers[name])
        is_open.remove(name)
    assert script.die() == ["script"]
    assert sys.excepthook == before


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_somebody_else_s_hook_in_between_stays(order: Sequence[str], script: Script) -> None:
    take_errors(script.takers["a"])
    hook = script.add_hook()
    take_errors(script.takers["b"])
    take_errors(script.takers["c"])
    is_open = set("abc")
    for name in order:
        assert script.die() == [*sorted(is_open), "other", "script"]
        assert (script.calls.count("script"), script.calls.count("other")) == (1, 1)
        take_no_errors(script.takers[name])
        is_open.remove(name)
    assert sys.excepthook is hook
    assert script.die() == ["other", "script"]
    take_errors(script.takers["a"])
    assert script.die() == ["a", "other", "script"]
    take_no_errors(script.takers["a"])
    assert sys.excepthook is hook


def test_a_hook_that_is_taken_off_again_leaves_none_of_ours(script: Script) -> None:
    before = sys.excepthook
    take_errors(script.takers["a"])
    ours = sys.excepthook
    script.add_hook()
    take_no_errors(script.takers["a"])
    sys.excepthook = ours  # as its owner found it
    assert script.die() == ["script"]
    take_errors(script.takers["b"])
    assert script.die() == ["b", "script"]
    take_no_errors(script.takers["b"])
    assert sys.excepthook == before
