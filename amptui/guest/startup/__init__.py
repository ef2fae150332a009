"""The folder on ``PYTHONPATH`` of a script that ``amptui run --observe`` starts."""
