"""Adapt a retriever to a collection, from nothing but its documents."""
