"""What everything stands on: errors, units, text, files and terminals. It knows no run and no torch."""
