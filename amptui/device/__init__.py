"""What the hardware says: NVML and the host, sampled beside the training. Never torch."""
