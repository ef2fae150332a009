"""What opens over the panels: each overlay takes the keyboard and answers what shall happen."""
