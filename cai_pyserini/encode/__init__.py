"""Encode documents and queries into raw vectors: the only expensive stage."""
