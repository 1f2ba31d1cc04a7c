"""Combining runs: fusion and reranking."""
