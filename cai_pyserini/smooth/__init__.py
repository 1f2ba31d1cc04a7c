"""Smoothing: raw SPLADE vectors of documents, mixed with those of their nearest neighbours."""
