"""The nearest neighbours of every document."""
