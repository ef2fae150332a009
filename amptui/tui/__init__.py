"""The live screen of a run. It uses Textual, and never imports torch.

Textual provides the event loop, the keys and the terminal. Panels draw on a canvas of our own, and only the
cells that changed are written: where some 150 cells change in a frame, Textual's compositor writes 3.7 KB and
the painter 0.4 KB (7.4 and 0.8 KB/s at two frames a second). Over SSH this difference is felt.
"""
