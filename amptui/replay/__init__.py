"""Plays a recorded run into the screen that it was watched on: no torch, no GPU, at any speed."""

from amptui.replay.play import replay

__all__ = ["replay"]
