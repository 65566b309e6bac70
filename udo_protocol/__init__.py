"""The bottom layer: what every other package agrees on. Imports nothing of the project above it."""
