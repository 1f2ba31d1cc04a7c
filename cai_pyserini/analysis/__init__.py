"""Analyses of collections, encoders and finished runs: each module answers one question."""
