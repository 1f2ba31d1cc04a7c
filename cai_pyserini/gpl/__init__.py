"""GPL: adapt a retriever with generated queries and a cross-encoder's scores."""
