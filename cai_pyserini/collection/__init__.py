"""Test collections: documents, topics and qrels, read and checked."""
