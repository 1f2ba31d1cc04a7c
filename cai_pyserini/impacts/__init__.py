"""Raw vectors in, integer impacts out: IDF, weighting, quantization, BM25 and associated words."""
