"""Our systems inside other frameworks: PyTerrier, LangChain, LlamaIndex, Haystack."""
