"""Checks by many seeded runs; none of their figures is a speed."""
