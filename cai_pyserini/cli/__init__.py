"""The commands: `cai-pyserini NAME` calls `main` of the module NAME, which parses before it imports what is slow."""

# Described here, not in the modules of cli/, so that the list is there before anything is imported.
COMMANDS = {
    "run": "from a collection to a table of scores: all stages",
    "stage": "one stage of `run`, such as encode, impact or index",
    "search": "search a run or an index",
    "serve": "serve search over HTTP or MCP: a page, a REST API, tools",
    "update": "bring a run up to date with its collection",
    "adapt": "adapt a retriever to a collection, without labels",
    "train": "train retrievers, and make training files",
    "evaluate": "measures and significance of TREC runs",
    "fuse": "fuse TREC runs",
    "rerank": "rerank a TREC run with a cross-encoder",
    "judge": "judge results on a page, and compare systems by the judgments",
    "analyse": "why a system ranks as it does, and what it costs",
    "ship": "package indexes and encoders for others",
    "export": "write impacts and encoders for other engines",
    "convert": "PubMed, S2ORC and BioASQ to BEIR's format",
    "plugin": "our encoders inside Pyserini, and exports for it",
    "completion": "complete commands, flags and names in bash, zsh or fish",
    "doctor": "check this machine, or an encoder",
}
USAGE = f"""usage: cai-pyserini COMMAND [ARGUMENT ...]
       cai-pyserini help COMMAND
       cai-pyserini -m MODULE [ARGUMENT ...]
       cai-pyserini --version

commands:
{"\n".join(f"  {name:<10} {description}" for name, description in COMMANDS.items())}

`-m` runs any Pyserini module, unmodified. It finds Java, and loads our encoders
by name or path:

  cai-pyserini -m pyserini.search.lucene --topics topics.json --impact \\
      --index runs/hpo/splade-tiny/indexes/splade-idf --encoder splade-tiny \\
      --output run.trec"""
