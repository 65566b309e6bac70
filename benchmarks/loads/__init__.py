"""Loads and floors that several suites use."""
