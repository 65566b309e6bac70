"""The duties of an operator's process, case by case: `udo conformance` plays the engine for an SDK's conformance operator.

docs/operator-protocol.md describes this operator in each of its roles. No server takes part.
"""
