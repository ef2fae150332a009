"""What keeps work of ours in somebody else's loop harmless: faults end the watching, not the loop."""

import functools
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from amptui.base.script_signals import is_from_signal_handler
from amptui.base.text import one_line

_OUR_FILES = str(Path(__file__).parents[2])


class Guarded(Protocol):
    """What calls methods of ours from hooks: a fault there ends it, not the training."""

    active: bool

    @property
    def must_not_look(self) -> bool:
        """Whether nothing may be done now."""

    def give_up(self, error: Exception) -> None:
        """Observe nothing more."""


_P = ParamSpec("_P")
_Loop = TypeVar("_Loop", bound=Guarded)


def harmless(method: Callable[Concatenate[_Loop, _P], None]) -> Callable[Concatenate[_Loop, _P], None]:
    """Call it while the loop is observed; an error there ends the observation, not the training."""

    @functools.wraps(method)
    def call(loop: _Loop, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        if not loop.active:
            return
        try:
            if not loop.must_not_look:
                method(loop, *args, **kwargs)
        except BaseException as error:
            if not is_settled(error, loop):
                raise

    return call


def is_settled(error: BaseException, *loops: Guarded) -> bool:
    """Whether ``error``, caught at work of ours, was ours: then these are not observed any more.

    The script's Ctrl+C or alarm, which may find us at work, is to be raised again: it has none of our frames.
    """
    if isinstance(error, Exception) and not is_from_signal_handler(error):
        for loop in loops:
            loop.give_up(error)
        return True
    leave_traceback(error)
    return False


class SeveralThreadsError(Exception):
    """Two threads of the script train: no gradient may be read while another thread writes it."""


def fault_words(error: Exception) -> str:
    """Why nothing is watched any more, on one line."""
    words = str(error) if isinstance(error, SeveralThreadsError) else f"{type(error).__name__}: {error}"
    return one_line(words)


def not_compiled(function: Callable[..., Any], *, calls: bool) -> None:
    """Keep ``torch.compile`` from a function that the loop's compiled code may call.

    ``calls``: all that it calls belongs to us too, and is not compiled either.
    """
    # An optimizer imports torch._dynamo; nothing is compiled without it.
    with suppress(ImportError, AttributeError):
        if "torch._dynamo" in sys.modules:
            from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

            strategy = _FrameExecStrategy(
                _FrameAction.SKIP, _FrameAction.SKIP if calls else _FrameAction.DEFAULT
            )
            set_code_exec_strategy(function.__code__, strategy)


def leave_traceback(error: BaseException) -> None:
    """Take our frames, from the one that handles ``error`` on, out of its traceback.

    A bare ``raise`` afterwards does not put the handling frame back.
    """
    entry = error.__traceback__
    while entry is not None and entry.tb_frame.f_code.co_filename.startswith(_OUR_FILES):
        entry = entry.tb_next
    error.__traceback__ = entry
