"""Whatever the order in which monitors open and close, ``sys.excepthook`` is what it is without them."""

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

import pytest

from amptui.guest.error_hook import begin_taking, end_taking

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


class Script:
    """A script with a hook of its own, and what hooks and monitors were told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.takers = {name: self._taker(name) for name in "abc"}
        sys.excepthook = self._own

    def _taker(self, name: str) -> Callable[[BaseException], object]:
        return lambda _error: self.told.append(name)

    def _own(self, *_: object) -> None:
        self.told.append("script")

    def add_hook(self) -> Hook:
        """Somebody else's, which passes on what it gets."""
        before = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None, /) -> None:
            self.told.append("other")
            before(kind, error, trace)

        sys.excepthook = hook
        return hook

    def die(self) -> list[str]:
        """Who is told of an error, in order, each of them once."""
        self.told.clear()
        sys.excepthook(ValueError, ValueError(), None)
        return sorted(set(self.told))


@pytest.fixture
def script() -> Iterator[Script]:
    before = sys.excepthook
    yield Script()
    sys.excepthook = before


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_in_any_order_nothing_is_left(order: Sequence[str], script: Script) -> None:
    before = sys.excepthook
    for name in "abc":
        begin_taking(script.takers[name])
    is_open = set("abc")
    for name in order:
        assert script.die() == [*sorted(is_open), "script"]
        assert script.told.count("script") == 1
        end_taking(script.takers[name])
        is_open.remove(name)
    assert script.die() == ["script"]
    assert sys.excepthook == before


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_somebody_else_s_hook_in_between_stays(order: Sequence[str], script: Script) -> None:
    begin_taking(script.takers["a"])
    hook = script.add_hook()
    begin_taking(script.takers["b"])
    begin_taking(script.takers["c"])
    is_open = set("abc")
    for name in order:
        assert script.die() == [*sorted(is_open), "other", "script"]
        assert (script.told.count("script"), script.told.count("other")) == (1, 1)
        end_taking(script.takers[name])
        is_open.remove(name)
    assert sys.excepthook is hook
    assert script.die() == ["other", "script"]
    begin_taking(script.takers["a"])
    assert script.die() == ["a", "other", "script"]
    end_taking(script.takers["a"])
    assert sys.excepthook is hook


def test_a_hook_that_is_taken_off_again_leaves_none_of_ours(script: Script) -> None:
    before = sys.excepthook
    begin_taking(script.takers["a"])
    ours = sys.excepthook
    script.add_hook()
    end_taking(script.takers["a"])
    sys.excepthook = ours  # as its owner found it
    assert script.die() == ["script"]
    begin_taking(script.takers["b"])
    assert script.die() == ["b", "script"]
    end_taking(script.takers["b"])
    assert sys.excepthook == before
