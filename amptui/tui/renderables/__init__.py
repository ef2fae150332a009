"""Curves, ribbons, bars and histograms: pure drawings on a canvas, tested without an app."""
