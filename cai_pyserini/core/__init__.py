"""Artifacts and their identity, steps, settings, files and locks."""
