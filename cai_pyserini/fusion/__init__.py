"""Combining systems: fusion of runs, rescoring for exact hybrids, and reranking."""
