"""Domain corpora in BEIR's format: PubMed's baseline, S2ORC's abstracts, and BioASQ's articles and questions."""
