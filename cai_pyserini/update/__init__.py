"""A run whose collection has changed: a new run is made beside it, and takes its place."""
