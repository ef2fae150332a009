"""The processes of a run and its screens: starting, recording, watching and ending them."""
