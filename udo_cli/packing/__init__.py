"""Makes an OCI image of an operator's folder, without Docker: checks it, resolves dependencies, packs, uploads."""
