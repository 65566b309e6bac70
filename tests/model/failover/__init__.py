"""The loss of a node: one key group, its owner and its replicas, the registry, and Spark's retries, in every order."""
