"""How ranks come on, hang and end, and how the others notice."""
