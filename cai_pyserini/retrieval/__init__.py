"""Search one open index with encoded queries, for hits or a TREC run."""
