"""Errors that a user can fix. Each message is one line: what is wrong, where, and a hint.

AmptuiError
├── UsageError       the command line asks for something that does not exist  (exit status 2)
├── ExperimentError  a model file or its code is wrong                        (exit status 1)
├── DataError        data files are missing, truncated or wrong               (exit status 1)
├── DeviceError      the device is missing, out of memory or has failed       (exit status 1)
│   └── DeviceLostError  a kernel failed on it                                (exit status 1)
├── RunFolderError   a run's folder cannot be used                            (exit status 1)
├── RemoteError      another machine, or amptui on it, cannot be reached      (exit status 1)
├── OutputError      the output cannot be written                             (exit status 1)
└── TerminalClosedError  the terminal was closed before the screen opened         (exit status 129)

A run that is done but lacks records or checkpoints has a status of its own: ``keeping.UNSAVED_STATUS``.
"""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: str, choices: Iterable[str], otherwise: str) -> str:
    """The hint that names the choice that is most like ``word``, or ``otherwise`` if none is."""
    near = get_close_matches(word, choices, n=1, cutoff=0.55)
    return f"did you mean {near[0]}?" if near else otherwise


class AmptuiError(Exception):
    """An error with a message of one line; ``hint`` says what to do about it."""

    exit_status = 1

    def __init__(self, what: str, *, hint: str = "") -> None:
        super().__init__(f"{what}; {hint}" if hint else what)
        self.what = what
        self.hint = hint

    def add_hint(self, hint: str) -> None:
        """Say that as well, at the end of the message."""
        self.hint = f"{self.hint}; {hint}" if self.hint else hint
        self.args = (f"{self.what}; {self.hint}",)


class UsageError(AmptuiError):
    """The command line asks for something that does not exist."""

    exit_status = 2


class ExperimentError(AmptuiError):
    """A model file cannot be loaded, or its code does something that the training loop cannot use."""


class DataError(AmptuiError):
    """Data files are missing, truncated or wrong."""


class DeviceError(AmptuiError):
    """The requested device is missing, out of memory, or has failed."""


class DeviceLostError(DeviceError):
    """A kernel failed: no call to the device succeeds in this process any more."""


class RunFolderError(AmptuiError):
    """The run's folder cannot be created, written or used again."""


class RemoteError(AmptuiError):
    """Another machine cannot be reached through ssh, or has no amptui that this one understands."""


class OutputError(AmptuiError):
    """The output of a command cannot be written to standard output."""


class TerminalClosedError(AmptuiError):
    """The terminal was closed before there was a screen on it; the script that it started goes on."""

    exit_status = 129
