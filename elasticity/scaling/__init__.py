"""Scaling policies, for the number and the nodes of an operator's replicas: the two managers of paper 5, DS2, fuzzy detection."""
