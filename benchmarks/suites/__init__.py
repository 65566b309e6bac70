"""What is measured: a module for each suite, with `run` and `sections`."""
