"""Watches this node's slots and decides about their number, by the policies of `elasticity`, real measurements and real steps."""
