"""What opens over the panels: an overlay draws itself, takes the keys and answers with what to do."""
