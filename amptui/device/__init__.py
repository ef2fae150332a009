"""Samples GPUs through NVML and the host during training. Never imports torch."""
