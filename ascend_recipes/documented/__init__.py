"""Documented commands beside what their recipes render to, argument by argument."""
