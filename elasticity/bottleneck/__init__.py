"""Is an operator a bottleneck? Fuzzy detection with data that a user can read and replace (paper 3)."""
