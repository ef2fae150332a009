"""Pure drawings on a canvas: curves, ribbons, bars. Tested without an app."""
