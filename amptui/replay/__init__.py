"""Replays a recorded run on the screen at any speed, without torch or a GPU."""

from amptui.replay.play import replay

__all__ = ["replay"]
