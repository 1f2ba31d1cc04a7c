"""Shared by all exports: the impacts of documents and queries, or an encoder, and the artifact.

A format is a function that writes its files to a folder and returns what the format loses, as sentences.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cai_pyserini.core import artifact, files, jsonl
from cai_pyserini.core.config import EncoderConfig, encoder_yaml, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.json_vectors import WRITERS, parse_vector
from cai_pyserini.core.terminal import progress
from cai_pyserini.impacts.quantization import loss_text
from cai_pyserini.lucene.retrieve import word_queries
from cai_pyserini.models.checkpoint import checkpoint_digest
from cai_pyserini.models.encoder import Encoder, Role
from cai_pyserini.models.idf import idf_digest
from cai_pyserini.vectors.queries import Queries, Representation

TIES = "the order of documents with equal scores"

Vector = dict[str, int]
WriteEncoder = Callable[[EncoderConfig, Representation, Path], list[str]]


class Source:
    """A folder of impacts and, optionally, topics to encode and export with it.

    Raises CaiError for a folder that the impact stage has not written, or whose checkpoint has changed since.
    """

    def __init__(
        self,
        impacts: Path,
        topics: dict[str, str] | None = None,
        query: Representation | None = None,
        device: str = "auto",
    ):
        self._impacts = impacts
        folder = impacts.resolve()  # stay with one version of a run, even if an update makes another
        self.manifest = artifact.require(folder, *WRITERS)
        self.config = load_encoder(str(impacts / "encoder.yaml"))
        self.encoder = Encoder(self.config, device)
        self.encoder.require_identity(self.manifest.stats["encoder"], impacts, "make it again")
        if impacts.resolve() != folder:
            raise CaiError(f"{impacts} was replaced by an update: run the command again")
        self._files = [folder / name for name in self.manifest.files if name.endswith(".jsonl")]
        words = word_queries(self.config) if topics else None
        self.query = query
        self._queries = Queries(topics or {}, self.encoder, query, words=words)

    def documents(self) -> Iterator[tuple[str, Vector]]:
        """Yield the id and impacts of every document. Raises CaiError if some are missing."""
        lines = (line for file in self._files for line in jsonl.read_lines(file))
        expected, documents = self.manifest.stats["vectors"], 0
        for where, line in progress(lines, expected, "export"):
            documents += 1
            yield parse_vector(line, where)
        artifact.require_count(self._impacts, documents, expected)

    def queries(self) -> dict[str, Vector]:
        """Query weights by topic id; empty without topics."""
        encoded: dict[str, Any] = self._queries.for_search(self.config.query_scale)[0] if self._queries.topics else {}
        return encoded

    def write_queries(self, folder: Path) -> None:
        """Write the queries to queries.jsonl, as {"id", "vector"}, if there are topics."""
        if queries := self.queries():
            jsonl.write(folder / "queries.jsonl", ({"id": id, "vector": vector} for id, vector in queries.items()))

    def export(
        self,
        output: Path,
        write: Callable[["Source", Path], list[str]],
        format: str,
        *,
        to: Mapping[str, object] | None = None,
        more_inputs: Mapping[str, object] | None = None,
        more_stats: artifact.Stats | None = None,
    ) -> artifact.Manifest:
        """Make the artifact `output`, with an encoder.yaml to encode other queries. `to` is where else the export goes;
        `more_inputs` of the recipe and `more_stats` of the manifest are of the format."""
        inputs = {
            "impacts": self.manifest.digest,
            "encoder": self.config.shaping("query vectors", "queries"),
            "queries": self._queries.identity if self._queries.topics else None,
        }
        recipe = artifact.recipe("export", inputs | {**(more_inputs or {})}, format=format, to=to)

        def make(folder: Path) -> artifact.Stats:
            loses = write(self, folder)
            files.write_text(folder / "encoder.yaml", encoder_yaml(self.config, output))
            stats = self.manifest.stats
            return {
                "documents": stats["vectors"],
                "impacts": stats["nonzeros"],
                "queries": len(self._queries.topics),
                "document_scale": stats["document_scale"],
                "query_scale": self.config.query_scale,
                "bytes": files.folder_bytes(folder),
                "loses": [f"quantization of the impacts: {loss_text(stats['loss'])}", *loses],
                **(more_stats or {}),
            }

        return artifact.require(artifact.make(output, recipe, make), "export")


def empty_documents_note(empty: int) -> str:
    return f"documents without any impact: {empty:,}; none of them matches a query"


class Keys:
    """Integer keys of terms: token ids, followed by words in the order of their first occurrence."""

    def __init__(self, terms: list[str]):
        self._keys = {term: key for key, term in enumerate(terms)}

    def __len__(self) -> int:
        return len(self._keys)

    def document_vector(self, vector: Vector) -> dict[int, int]:
        """The impacts of a document by key; new words get a new key."""
        return {self._keys.setdefault(term, len(self._keys)): impact for term, impact in vector.items()}

    def query_vector(self, vector: Vector) -> dict[int, int]:
        """The weights of a query by key, without words that are in no document."""
        return {self._keys[term]: weight for term, weight in vector.items() if term in self._keys}

    def write(self, folder: Path) -> None:
        """Write terms.txt, a line per term; the line number, from 0, is the key."""
        (folder / "terms.txt").write_text("".join(f"{term}\n" for term in self._keys), encoding="utf-8")


def export_encoder(
    config: EncoderConfig, output: Path, format: str, write: WriteEncoder, query: Representation | None = None
) -> artifact.Manifest:
    """Make the artifact `output` of an encoder.

    Raises CaiError for a dense encoder, for the encoder of a joint index, whose words are in no vocabulary, and for
    lengths beyond the checkpoint's positions.
    """
    encoder = Encoder(config, "cpu")
    config = encoder.config
    if config.kind == "dense":
        raise CaiError(f"{config.name} is a dense encoder: only SPLADE encoders are exported")
    if config.joint:
        raise CaiError(
            f"{config.name} is the encoder of a joint index: {format} would leave the words of BM25 out of queries. "
            "Export the impacts with their queries (milvus, opensearch, …), or the queries with "
            "`cai-pyserini plugin export-topics`"
        )
    representation = query or config.query
    roles: list[Role] = ["documents", "queries"] if representation == "splade" else ["documents"]
    encoder.require_loadable(*roles)
    inputs = {
        "checkpoint": checkpoint_digest(encoder.checkpoint),
        "encoder": config.shaping("vectors", "impacts", "query vectors", "queries"),
        "idf": idf_digest(config.idf_folder),
    }
    recipe = artifact.recipe("export", inputs, format=format, query=representation, queries=encoder.query_only_identity)

    def make(folder: Path) -> artifact.Stats:
        loses = write(config, representation, folder)
        if representation == "splade" or encoder.token_weights is not None:
            harmless = {"query"}
            if config.rescore:  # two-step search scores by all terms, as the export does
                harmless |= {"keep_query_terms", "rescore"}
            for key, value in config.shaping("queries").items():
                if key not in harmless:
                    loses.append(f"the setting {key}, {value}: queries are encoded without it")
        return {"bytes": files.folder_bytes(folder), "loses": loses}

    return artifact.require(artifact.make(output, recipe, make), "export")
