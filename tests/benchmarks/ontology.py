"""Collections to confirm on what was chosen on others: ontologies of the package cellxgene-ontology-guide.

A document is a term that is not obsolete and has a definition (title: its name, text: the definition); a query is a
synonym that is no term's name; relevant are the terms that bear it. Of the queries a sample is taken. UBERON's terms
are of anatomy, MONDO's of diseases, CL's of cells. Unlike the demo's, the synonyms are of all kinds: Latin,
abbreviations, spellings.
"""

import random
from pathlib import Path

import folders

from cai_pyserini.collection.contract import Record

QUERIES = 2000
SEED = 42


def write(ontology: str, output: Path) -> tuple[int, int]:
    """Write a BEIR folder. Returns the numbers of its documents and queries."""
    from cellxgene_ontology_guide.supported_versions import CXGSchema

    documents = {
        id: term
        for id, term in CXGSchema().ontology(ontology).items()
        if id.startswith(ontology + ":") and not term["deprecated"] and term.get("description")
    }
    names = {term["label"].casefold() for term in documents.values()}
    bearers: dict[str, dict[str, None]] = {}
    for id, term in documents.items():
        for synonym in term.get("synonyms", ()):
            if synonym.casefold() not in names:
                bearers.setdefault(synonym, {})[id] = None
    queries = random.Random(SEED).sample(sorted(bearers), QUERIES)
    records = [Record("", id, term["label"], term["description"]) for id, term in documents.items()]
    topics = {f"q{number}": query for number, query in enumerate(queries, 1)}
    qrels = {id: dict.fromkeys(bearers[query], 1) for id, query in topics.items()}
    return folders.write(output, records, topics, {"test": qrels}), len(queries)


def main() -> None:
    parser = folders.parser(
        "ontology",
        "Write an ontology as a BEIR folder: terms as documents, synonyms as queries.",
        "UBERON --output data/uberon",
    )
    parser.add_argument("ontology", choices=["UBERON", "MONDO", "CL"])
    args = parser.parse_args()
    documents, queries = write(args.ontology, args.output)
    print(f"{args.output}: {documents:,} documents, {queries:,} queries")


if __name__ == "__main__":
    main()
