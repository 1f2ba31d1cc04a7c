"""Encoding: documents and queries -> raw vectors. The only expensive stage."""
