"""What the experiment on interventions is made of: arms, the three settings, tables and verdict."""
