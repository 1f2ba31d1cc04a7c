"""Fusion and reranking of runs."""
