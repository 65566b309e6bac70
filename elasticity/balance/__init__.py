"""Which engine answers which key: the policies of paper 2 (dynamic load balancing between engines) and their baselines."""
