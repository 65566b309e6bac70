"""The controllers' decisions: pure functions from measurements to changes.

Nothing in this package does I/O, starts threads or reads a clock: times are arguments, randomness comes from a seeded generator that the
caller passes in. Sampling and execution (node manager, registry) live above it.
"""
