"""A script's own signal handlers may raise in the middle of our work: then the error is the script's."""

import signal


def is_from_signal_handler(error: BaseException) -> bool:
    """Whether a signal handler that is in place now raised ``error``."""
    codes = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()}
    entry = error.__traceback__
    while entry is not None:
        if entry.tb_frame.f_code in codes:
            return True
        entry = entry.tb_next
    return False
