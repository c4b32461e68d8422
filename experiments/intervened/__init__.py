"""What the experiment on interventions is made of: arms, the four settings, tables and verdict."""
