"""Tests of amptui.device; a package, so that tests/ itself is on the path for ``fake_nvml``."""
