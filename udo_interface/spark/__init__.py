"""Calls from Spark: planned on the driver, carried out by its tasks."""
