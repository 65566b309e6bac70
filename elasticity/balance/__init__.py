"""Assignment of keys to engines: the policies of paper 2 (dynamic load balancing between engines) and their baselines."""
