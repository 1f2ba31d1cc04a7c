"""Whole experiments on a test collection: the systems, the steps, and the report."""
