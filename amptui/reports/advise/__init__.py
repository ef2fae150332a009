"""Recommends a precision for a model or a script, from measurements, with the lines to paste."""

from amptui.reports.advise.advise_command import advise

__all__ = ["advise"]
