"""Which precision pays here: a model's precisions measured in turns, with progress, tables and reasons."""

from amptui.bench.measure import bench, plan_precisions

__all__ = ["bench", "plan_precisions"]
