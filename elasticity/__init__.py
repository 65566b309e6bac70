"""The controllers' decisions: pure functions from what was measured to what should change.

Nothing here does I/O, starts threads or reads a clock: times are arguments, randomness comes from a seeded generator that the
caller passes in. Whoever samples and executes (node manager, registry) lives above this package.
"""
