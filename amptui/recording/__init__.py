"""From rows to the journal, the histories and the screens: one way for all kinds of runs."""
