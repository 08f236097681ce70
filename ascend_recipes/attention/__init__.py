"""Attention backends and their metadata builders."""
