"""Processes and containers that run operators: started warm or cold, recorded, found again."""
