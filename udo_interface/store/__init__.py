"""The second state store of a keyed query: files that pyarrow.fs reaches."""
