"""Exactly once under fire: what plays Spark, what breaks things, and the plain process whose answers must come out."""
