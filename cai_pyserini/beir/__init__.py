"""Whole experiments on a test collection: the systems, the order of the stages, and the report."""
