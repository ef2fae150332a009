"""A recorded run in other programs' formats: a table, TensorBoard's event files, a page to hand on."""

from amptui.export.exporting import Exported, export

__all__ = ["Exported", "export"]
