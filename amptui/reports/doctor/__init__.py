"""What this machine can do for mixed-precision training; each problem comes with a hint."""
