"""One module for each figure or table: a frozen config, a run, a drawing."""
