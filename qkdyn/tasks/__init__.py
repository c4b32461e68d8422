"""What is learned: where sequences come from."""
