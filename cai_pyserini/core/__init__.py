"""Artifacts and their identity, steps, settings, files, locks and object stores."""
