"""Benchmarks a model in every precision, in alternation, with progress, tables and reasons."""

from amptui.reports.bench.measure import bench, plan_precisions

__all__ = ["bench", "plan_precisions"]
