"""New versions on trial: mirrors, which are only compared (diff, keyed canary), and canaries, which get a share of the lanes."""
