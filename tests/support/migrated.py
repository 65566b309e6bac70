"""A keyed operator of the next state version, with its migration."""

from __future__ import annotations

from tests.support.keyed_node import COUNT

MIGRATED = COUNT.replace('"n"', '"m"') + "    def migrate(self, old, from_version): return {'m': old['n']}\n"
