"""What is printed or written on request: comparisons, benchmarks, advice, exports and the doctor's checks."""
