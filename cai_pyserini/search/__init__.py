"""Search: an index and queries -> a TREC run."""
