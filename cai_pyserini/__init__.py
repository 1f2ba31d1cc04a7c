"""Unsupervised domain adaptation of SPLADE (CAI: AdaLM, IDF weighting, BM25) for Pyserini and Lucene.

This module imports nothing, so that `--help` and the Pyserini plugin start at once.
"""

__version__ = "0.2.0"
