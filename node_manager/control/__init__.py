"""Watches this node's slots and decides about their number: the policies of `elasticity` with real measurements and real steps."""
