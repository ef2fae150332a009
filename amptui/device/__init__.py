"""What this machine has: GPUs through NVML and the host, sampled without torch; torch's accelerators."""
