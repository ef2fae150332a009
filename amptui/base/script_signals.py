"""A script's own signal handlers may raise in the middle of our work: then the error is the script's."""

import signal
from traceback import walk_tb


def is_from_signal_handler(error: BaseException) -> bool:
    """Whether a signal handler that is in place now raised ``error``."""
    functions: list[object] = []
    for handler in map(signal.getsignal, signal.valid_signals()):
        # Itself; what a partial calls; what an object is called by.
        functions += (handler, getattr(handler, "func", None), getattr(handler, "__call__", None))  # noqa: B004
    codes = {getattr(function, "__code__", None) for function in functions}
    return any(frame.f_code in codes for frame, _line in walk_tb(error.__traceback__))
