"""What is read of trained text models: of every post by every run, and of whole splits."""
