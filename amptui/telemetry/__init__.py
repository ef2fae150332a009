"""Folds records into what a screen shows: histories, comparison, health and the session."""
