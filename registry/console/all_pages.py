"""The console as one blueprint: importing the pages registers their routes."""

from __future__ import annotations

from registry.console import node_pages, pages
from registry.console.framing import routes

__all__ = ["node_pages", "pages", "routes"]
