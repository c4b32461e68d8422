"""What is fast, and against what: every number beside a named baseline of the same run, never a timed test."""
