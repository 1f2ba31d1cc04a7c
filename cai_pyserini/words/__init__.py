"""The words of documents as BM25 counts them, for joint indexes."""
