"""Where ranks meet: the store that they share, and where each of them runs."""
