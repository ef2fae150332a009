"""A recorded run on the screen, at any speed."""
