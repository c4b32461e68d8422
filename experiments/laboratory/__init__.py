"""The parts of the theory laboratory, each of which tries one part of the paper's mathematics on numbers."""
