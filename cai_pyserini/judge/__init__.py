"""Relevance judgments: a page to make them, and commands that use them."""
