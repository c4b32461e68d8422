"""What is read off records: theory beside simulation, and the measures of attention."""
