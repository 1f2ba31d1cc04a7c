"""GPL: adapt a retriever with generated queries and the scores of a cross-encoder."""
