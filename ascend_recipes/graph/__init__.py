"""Static graphs: capture and replay of whole decode steps."""
