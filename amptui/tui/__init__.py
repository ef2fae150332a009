"""The screen. Textual lives here; torch never does.

Textual gives the event loop, the keys and the terminal. Panels are drawn on a canvas of our own, and only the
cells that changed are written: for the same frames, of which some 150 cells change, Textual's compositor
writes 3.7 KB and the painter 0.4 KB (14.4 and 1.7 KB/s at four frames a second), which counts over SSH.
"""
