"""Exactly once under faults: code that plays Spark, code that breaks things, and the plain process that gives the expected answers."""
