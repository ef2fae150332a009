"""Exports a recorded run as a CSV table, a TensorBoard event file or an HTML page."""

from amptui.reports.export.exporting import Exported, export

__all__ = ["Exported", "export"]
