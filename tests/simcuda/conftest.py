"""Tests in this folder run on the pretended GPU, in processes that they start."""

from tests.built_device import device_folder
from tests.simcuda import device
from tests.simcuda.build import build_once

collect_ignore_glob = [] if device.is_present() else ["on_it/*"]

pretended_gpu = device_folder("simcuda", build_once)
