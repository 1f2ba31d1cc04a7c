"""Adapt a retriever to a collection, using only its documents."""
