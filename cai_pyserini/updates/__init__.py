"""Runs of collections that have changed: their next version, and what shifted."""
