"""Training examples from nothing but a collection's documents.

A pseudo query is a part of a document: its title, or a sentence of its text. Candidates are what BM25 and the encoder
itself, with IDF, find for it. The teacher is the sum of both, each divided by its largest score for the query...
"""
