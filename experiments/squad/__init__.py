"""Table 1 on SQuAD: recipes and arms, questions, training, tables, what was published, the verdict."""
