"""Keyed state: groups and sessions in memory, and their stored form. No server: that is udo_runtime.durable."""
