"""An operator in a process of its own, in any language: the engine's side of the operator protocol (docs/operator-protocol.md)."""
