"""The screen. Textual lives here; torch never does."""
