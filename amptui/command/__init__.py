"""The command line: a file for each command, its options, and the processes that it starts."""
