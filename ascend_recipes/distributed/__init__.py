"""Collectives between the processes of a parallel group."""
