"""Benchmarks a model in every precision, in alternation, with progress, tables and reasons."""
