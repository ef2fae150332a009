"""What each rank measures of itself: times, overflows, and whether its weights are still the others'."""
