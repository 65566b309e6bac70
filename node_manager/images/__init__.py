"""Operator images: pulled by digest, unpacked by a child with limits."""
