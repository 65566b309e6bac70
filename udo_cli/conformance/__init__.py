"""What an operator's process has to do, case by case: `udo conformance` plays the engine for an SDK's conformance operator.

docs/operator-protocol.md says what that operator does in each of its roles. No server takes part.
"""
