"""What is trained: an experiment, the model file that holds it, its options, and the request to train it."""
