"""Tests in this folder run on the pretended GPU, in processes that test_on_it.py starts."""

from tests.simcuda import device

collect_ignore_glob = [] if device.is_present() else ["on_it/*"]
