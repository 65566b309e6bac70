"""How many replicas an operator has, and where: the two managers of paper 5, DS2, and fuzzy detection as scaling policies."""
