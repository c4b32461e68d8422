"""Real text: where its files are, what they hold, and how their words become tokens and batches (numpy, no JAX)."""
