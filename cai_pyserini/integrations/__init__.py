"""Our systems in other frameworks: PyTerrier, LangChain, LlamaIndex, Haystack."""
