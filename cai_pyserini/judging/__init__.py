"""Judgments of documents by people and language models, and examples to train on."""
