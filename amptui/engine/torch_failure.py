"""Explains why torch cannot be imported; imports nothing of it."""

from amptui.base.errors import DeviceError
from amptui.base.text import one_line


def torch_failed(error: BaseException) -> DeviceError:
    """Why torch cannot be imported: ``error`` comes from the first attempt; later ones hide the reason."""
    if isinstance(error, ModuleNotFoundError):
        return DeviceError(f"{error} (while importing torch)", hint="install torch for this Python")
    what = one_line(f"{type(error).__name__}: {error}").removesuffix(":")
    return DeviceError(
        f"{what} (while importing torch)",
        hint="check that `python -c 'import torch'` works, and `ulimit -v`",
    )
