"""All of Java: the JVM, analyzers, indexes and searches; and Faiss, the other kind of index."""
