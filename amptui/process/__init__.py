"""The processes of a run and its screens: started, wired, watched, recorded, ended."""
