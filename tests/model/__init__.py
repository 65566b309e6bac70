"""An explicit-state model of the keyed slot protocol: every order of steps and faults in a small scope is explored."""
