"""Simulations on a simulated clock: the controllers' own code, models of everything else. Figures from here are labelled so."""
