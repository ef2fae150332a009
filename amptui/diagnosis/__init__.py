"""Every sentence about a run, made from the numbers and enums of its session."""
