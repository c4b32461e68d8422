"""What Figures 2 and 3 share: arms of runs on Sec. 4's tokens, each of which leaves one small record."""
