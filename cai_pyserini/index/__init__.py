"""Indexes that Pyserini opens: impacts and text in Lucene, dense vectors in Faiss."""
