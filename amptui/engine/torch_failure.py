"""Explains why torch cannot be imported; imports nothing of it."""

from amptui.errors import DeviceError


def torch_failed(error: BaseException) -> DeviceError:
    """Why torch cannot be imported: ``error`` comes from the first attempt; later ones hide the reason."""
    if isinstance(error, ModuleNotFoundError):
        return DeviceError(f"{error} (while importing torch)", hint="install torch for this Python")
    what = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}".removesuffix(": ")
    return DeviceError(
        f"{what} (while importing torch)",
        hint="check that `python -c 'import torch'` works, and `ulimit -v`",
    )
