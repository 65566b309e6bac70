"""Replicas of keyed slots on other nodes: what the owner's node sends (sources.py), and what the replica's node keeps (copies.py)."""
