"""Facts: typed tables over the YAML rows of `registry/` and the contracts of `ops/`."""
