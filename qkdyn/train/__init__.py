"""Learning by gradient descent: one run, and many together."""
