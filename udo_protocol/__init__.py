"""The bottom layer: definitions that all other packages share. Imports nothing from the packages above it."""
