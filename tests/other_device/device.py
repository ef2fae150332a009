"""The device of ``device.cpp`` as torch sees it, in every process whose environment names its library."""

import os
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.backend_registration import (
    generate_methods_for_privateuse1_backend,
    rename_privateuse1_backend,
)

NAME = "plain"

LIBRARY_VARIABLE = "AMPTUI_TEST_OTHER_DEVICE"


def load() -> None:
    """Called by torch at the end of its import; does nothing elsewhere than on the device."""
    library = os.environ.get(LIBRARY_VARIABLE)
    if library is None:
        return
    rename_privateuse1_backend(NAME)
    torch.ops.load_library(library)
    torch._register_device_module(NAME, _MODULE)
    generate_methods_for_privateuse1_backend()


_MODULE: Any = SimpleNamespace(
    is_available=lambda: True,
    is_initialized=lambda: True,
    device_count=lambda: 1,
    current_device=lambda: 0,
    manual_seed_all=lambda _seed: None,
    get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16],
    _is_in_bad_fork=lambda: False,
)
"""What torch asks of every backend, and nothing else: no memory, no random states, no properties."""
