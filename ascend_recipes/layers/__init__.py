"""Out-of-tree layers that carry no model name."""
