"""Searching indexes, many queries at a time."""
