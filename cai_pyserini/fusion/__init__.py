"""Combining runs: fusion, rescoring for exact hybrids, and reranking."""
