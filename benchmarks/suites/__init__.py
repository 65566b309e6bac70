"""The measurements: a module for each suite, with `run` and `sections`."""
