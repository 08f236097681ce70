"""What the lines of a log mean: rows of `registry/log_messages` found in it, the root first."""
