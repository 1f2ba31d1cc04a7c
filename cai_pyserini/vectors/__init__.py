"""Vectors on disk: encoding, the cache, nearest neighbours, and mixing."""
