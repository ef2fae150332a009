"""Files of what a training resumes from, and of its weights."""
