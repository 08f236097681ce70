"""Routed experts through operations."""
