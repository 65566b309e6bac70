"""Lanes over slots: frames out, answers in; used by Spark tasks and by the engine-free client."""
