"""Starting vLLM from a plan, watching it, and ending it without leftovers."""
