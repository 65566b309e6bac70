"""Bottleneck detection by fuzzy logic, with rules that a user can read and replace (paper 3)."""
