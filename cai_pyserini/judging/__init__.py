"""Judgments of documents by people and language models."""
