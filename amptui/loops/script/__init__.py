"""The engine beside a training loop that is not ours: observed through hooks, or with a precision of ours."""
