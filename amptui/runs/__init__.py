"""A run outside of its process: folder, journal and lock, and the socket over which screens watch it."""
