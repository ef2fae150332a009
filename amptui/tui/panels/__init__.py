"""Each panel draws one part of a session view onto a canvas, and holds no logic."""
