"""What can go wrong that a person can mend: one line each, saying what, where and the mend.

AmptuiError
├── UsageError       the command line asks for something that is not there   (exit status 2)
├── ExperimentError  a model file, or the code in it                          (exit status 1)
├── DataError        data files that are absent, truncated or wrong           (exit status 1)
├── DeviceError      a device that is absent, out of memory or has failed     (exit status 1)
│   └── DeviceLostError  one on which a kernel failed                         (exit status 1)
├── RunFolderError   a run's folder that cannot be used                       (exit status 1)
└── OutputError      what a command prints cannot be written                  (exit status 1)
"""


class AmptuiError(Exception):
    """A trouble told in one line; ``mend`` says what the person can do about it."""

    exit_status = 1

    def __init__(self, what: str, *, mend: str = "") -> None:
        super().__init__(f"{what}; {mend}" if mend else what)
        self.what = what
        self.mend = mend


class UsageError(AmptuiError):
    """The command line asks for something that is not there."""

    exit_status = 2


class ExperimentError(AmptuiError):
    """A model file cannot be loaded, or its code does something a training loop cannot use."""


class DataError(AmptuiError):
    """Data files are absent, truncated or wrong."""


class DeviceError(AmptuiError):
    """The device that was asked for is absent, out of memory, or has failed."""


class DeviceLostError(DeviceError):
    """A kernel failed: no call to the device succeeds in this process any more."""


class RunFolderError(AmptuiError):
    """The run's folder cannot be created, written or reused."""


class OutputError(AmptuiError):
    """What a command has to say does not fit where standard output leads."""
