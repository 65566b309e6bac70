"""The classes and functions that the author of an operator imports."""
