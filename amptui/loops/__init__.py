"""The loop that ``amptui train`` runs, and all that it needs."""
