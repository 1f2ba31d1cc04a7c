"""Vectors on disk: shards, and operations on their rows."""
