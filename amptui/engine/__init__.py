"""The training itself: precisions, the loop, readback. Knows no screen, no file and no NVML."""
