"""TREC runs: reading and writing, fusion, reranking, measures and significance."""
