"""From records to what a screen shows: histories, comparison, health and the session that folds them."""
