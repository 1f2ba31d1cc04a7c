"""Relevance judgments: a page to make them, and what they say."""
