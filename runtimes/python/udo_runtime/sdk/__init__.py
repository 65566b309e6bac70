"""What the author of an operator imports."""
