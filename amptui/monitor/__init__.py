"""What is told of steps, and what is decided between two of them."""
