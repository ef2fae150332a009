"""Recommends a precision for a model or a script, from measurements, with the lines to paste."""
