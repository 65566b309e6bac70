"""Elasticity decisions as pure functions: from signals to plans, on a simulated clock. No I/O, no threads, nothing is executed here."""
