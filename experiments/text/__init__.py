"""What the experiments on text share: recipes, arms of runs that each leave one small record, tables."""
