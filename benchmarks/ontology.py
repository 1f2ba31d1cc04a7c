"""Collections to confirm on what was chosen on others: ontologies of the package cellxgene-ontology-guide.

A document is a term that is not obsolete and has a definition (title: its name, text: the definition); a query is a
synonym that is no term's name; relevant are the terms that bear it. Of the queries a sample is taken. UBERON's terms
are of anatomy, MONDO's of diseases, CL's of cells. Unlike the demo's, the synonyms are of all kinds: Latin,
abbreviations, spellings.
"""

import random
from typing import Any

import harness

from cai_pyserini.collections.contract import Record

QUERIES = 2000
SEED = 42


def terms(ontology: str) -> dict[str, dict[str, Any]]:
    """The terms of an ontology that are not obsolete and have a definition, by their ids."""
    from cellxgene_ontology_guide.supported_versions import CXGSchema

    return {
        id: term
        for id, term in CXGSchema().ontology(ontology).items()
        if id.startswith(ontology + ":") and not term["deprecated"] and term.get("description")
    }


def main() -> None:
    parser = harness.output_of(__doc__)
    parser.add_argument("ontology", help="UBERON, MONDO or CL")
    args = parser.parse_args()

    documents = terms(args.ontology)
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
    harness.write_folder(args.output, records, topics, {"test": qrels})


if __name__ == "__main__":
    main()
