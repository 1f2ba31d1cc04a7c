"""Indexes and encoders that others can use: archives, a registry of them, cards, and uploads to a hub."""
