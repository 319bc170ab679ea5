"""Values without I/O: regions, data types, the manifest, the state tree and their rules."""
