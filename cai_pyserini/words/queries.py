"""The BM25 side of queries, with Anserini's analyzer."""

from cai_pyserini.core.config import EncoderConfig
from cai_pyserini.encode.queries import WordQueries
from cai_pyserini.words.analyzer import Analyzer


def word_queries(config: EncoderConfig) -> WordQueries | None:
    """The words of queries for a joint index, by its encoder; None for an encoder of another index."""
    return WordQueries(Analyzer(), config) if config.joint else None
