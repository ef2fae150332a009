"""Exports a recorded run as a CSV table, a TensorBoard event file or an HTML page."""
