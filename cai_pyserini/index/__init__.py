"""Indexes that Pyserini opens: impacts, text and dense vectors in Lucene, dense vectors in Faiss."""
