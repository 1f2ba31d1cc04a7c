"""Shared by all exports of impacts: documents and queries, and the artifact.

A format is a function that writes its files to a folder and returns what the format loses, as sentences.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from cai_pyserini.collections.contract import Collection
from cai_pyserini.core import artifact, files, jsonl
from cai_pyserini.core.config import encoder_yaml, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.terminal import progress
from cai_pyserini.indexes.retrieve import word_queries
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.vectors.json_vectors import WRITERS, parse_vector
from cai_pyserini.vectors.quantization import loss_text
from cai_pyserini.vectors.queries import Queries, Representation

TIES = "the order of documents with equal scores"

Vector = dict[str, int]


class Source:
    """A folder of impacts and, optionally, topics to encode and export with it, and the collection that has its texts.

    Raises CaiError for a folder that the impact stage has not written, or whose checkpoint has changed since.
    """

    def __init__(
        self,
        impacts: Path,
        topics: dict[str, str] | None = None,
        query: Representation | None = None,
        device: str = "auto",
        texts: Collection | None = None,
    ):
        self._impacts = impacts
        self.topics = topics or {}
        self.texts = texts
        folder = impacts.resolve()  # stay with one version of a run, even if an update makes another
        self.manifest = artifact.require(folder, *WRITERS)
        self.config = load_encoder(str(impacts / "encoder.yaml"))
        self.encoder = EncoderModel(self.config, device)
        self.encoder.require_identity(self.manifest.stats["encoder"], impacts, "make it again")
        if impacts.resolve() != folder:
            raise CaiError(f"{impacts} was replaced by an update: run the command again")
        self._files = [folder / name for name in self.manifest.files if name.endswith(".jsonl")]
        words = word_queries(self.config) if topics else None
        self.query = query
        self._queries = Queries(self.topics, self.encoder, query, words=words)

    def documents(self) -> Iterator[tuple[str, Vector]]:
        """Yield the id and impacts of every document. Raises CaiError if some are missing."""
        lines = (line for file in self._files for line in jsonl.read_lines(file))
        expected, documents = self.manifest.stats["vectors"], 0
        for where, line in progress(lines, expected, "export"):
            documents += 1
            yield parse_vector(line, where)
        artifact.require_count(self._impacts, documents, expected)

    @cached_property
    def queries(self) -> dict[str, Any]:
        """Query weights by topic id; empty without topics."""
        return self._queries.for_search(self.config.query_scale)[0] if self.topics else {}

    def write_queries(self, folder: Path) -> None:
        """Write the queries to queries.jsonl, as {"id", "vector"}, if there are topics."""
        if self.queries:
            lines = ({"id": id, "vector": vector} for id, vector in self.queries.items())
            jsonl.write(folder / "queries.jsonl", lines)

    def export(
        self,
        output: Path,
        write: Callable[["Source", Path], list[str]],
        format: str,
        more_stats: artifact.Stats | None = None,
        **settings: object,
    ) -> artifact.Manifest:
        """Make the artifact `output`, with an encoder.yaml to encode other queries. `write` may add to
        `more_stats`, stored in the manifest."""
        inputs = {
            "impacts": self.manifest.digest,
            "encoder": self.config.shaping("query vectors", "queries"),
            "queries": self._queries.identity if self.topics else None,
        }
        recipe = artifact.recipe("export", inputs, format=format, to=settings)

        def make(folder: Path) -> artifact.Stats:
            loses = write(self, folder)
            files.write_text(folder / "encoder.yaml", encoder_yaml(self.config, output))
            stats = self.manifest.stats
            return {
                "documents": stats["vectors"],
                "impacts": stats["nonzeros"],
                "queries": len(self.topics),
                "document_scale": stats["document_scale"],
                "query_scale": self.config.query_scale,
                "bytes": files.folder_bytes(folder),
                "loses": [f"quantization of the impacts: {loss_text(stats['loss'])}", *loses],
                **(more_stats or {}),
            }

        return artifact.require(artifact.make(output, recipe, make), "export")


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
