"""The processes of a run and its screens: starting, connecting, watching, recording and ending them."""
