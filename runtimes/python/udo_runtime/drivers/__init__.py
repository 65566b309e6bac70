"""Drivers of an engine: the owner of a slot, a standby, a mirror, a replay. Each performs the effects that its engine requests."""
