"""New versions that are compared and serve nobody: diff and canary."""
