"""One file a measurement, and what decides when each is due."""
