"""The list of runs on the screen: what it needs of a run, how a frame of it is drawn, and its keys."""
