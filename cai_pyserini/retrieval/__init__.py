"""Retrieval: one open index and encoded queries -> hits, or a TREC run."""
