"""Anserini's default English analysis: words are split, stopped and stemmed (Porter)."""

import json

from cai_pyserini.core import jvm


class Analyzer:
    """Text -> words, as in an index of BM25. Starts the JVM. Threads can share one, or have their own."""

    @jvm.using_java("analyzing")
    def __init__(self) -> None:
        self._analyzer = jvm.java_class("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()
        self._analyze = jvm.java_class("io.anserini.analysis.AnalyzerUtils").analyze
        self._json = jvm.java_class("com.fasterxml.jackson.databind.ObjectMapper")()

    def __call__(self, text: str) -> list[str]:
        with jvm.using_java("analyzing"):
            # One string from Java, not a call for every word.
            return json.loads(self._json.writeValueAsString(self._analyze(self._analyzer, text)))
