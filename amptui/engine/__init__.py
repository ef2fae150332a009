"""The training itself: precisions, the loop, readback. Independent of screens, files and NVML."""
