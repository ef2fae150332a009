"""Looks into a step without changing it: gradients, float16's range, modules, operators, time and memory."""
