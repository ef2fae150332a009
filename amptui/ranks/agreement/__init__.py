"""What all ranks do after the same step, and what they tell rank 0, without a collective."""
