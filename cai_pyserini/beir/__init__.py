"""Whole experiments on a test collection: which systems, in which order, and the report."""
