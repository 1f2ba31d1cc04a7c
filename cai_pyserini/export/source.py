"""What exports of documents start from: the impacts of a collection, with queries in the same form."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cai_pyserini.core import artifact, jsonl
from cai_pyserini.core.config import encoder_yaml, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.terminal import progress
from cai_pyserini.encode.encoder import Encoder
from cai_pyserini.encode.queries import Queries, Representation
from cai_pyserini.impact.quantization import loss_text
from cai_pyserini.index.json_vectors import parse_vector
from cai_pyserini.words.queries import word_queries

LOSES = "loses"  # in the statistics of an export: what the format cannot hold, in sentences


class Source:
    """A folder of impacts. `topics`, if given, are exported beside the documents, encoded for them.

    Raises CaiError for a folder that the impact stage has not written, and if its checkpoint is not there any more.
    """

    def __init__(
        self,
        impacts: Path,
        topics: dict[str, str] | None = None,
        query: Representation | None = None,
        device: str = "auto",
    ):
        self._impacts = impacts
        self.manifest = artifact.require(impacts, "impact")
        self.config = load_encoder(str(impacts / "encoder.yaml"))
        self.encoder = Encoder(self.config, device)
        if self.manifest.stats["checkpoint"] != self.encoder.digest:
            raise CaiError(f"{impacts} was made with another checkpoint than {self.encoder.checkpoint}: make it again")
        self._files = [impacts / name for name in self.manifest.files if name.endswith(".jsonl")]
        words = word_queries(self.config) if topics else None
        self._queries = Queries(topics or {}, self.encoder, query, words=words)

    def documents(self) -> Iterator[tuple[str, dict[str, int]]]:
        """Yield the id and the impacts of every document. Raises CaiError where they are not as many as there were."""
        lines = (line for file in self._files for line in jsonl.read_lines(file))
        expected, documents = self.manifest.stats["vectors"], 0
        for where, line in progress(lines, expected, "export"):
            documents += 1
            yield parse_vector(line, where)
        artifact.require_count(self._impacts, documents, expected)

    def queries(self) -> dict[str, dict[str, int]]:
        """Query weights by id of the topic; empty without topics."""
        encoded: dict[str, Any] = self._queries.for_search(self.config.query_scale)[0] if self._queries.topics else {}
        return encoded

    def export(
        self, output: Path, write: Callable[[Path], list[str]], format: str, **settings: object
    ) -> artifact.Manifest:
        """Make the artifact `output`, with the encoder.yaml that further queries are encoded with.

        `write` gets a temporary folder, and returns what the format loses, in sentences.
        """
        inputs = {
            "impacts": self.manifest.digest,
            "encoder": self.config.shaping("queries"),
            "queries": self._queries.identity if self._queries.topics else None,
        }
        recipe = artifact.recipe("export", inputs, format=format, to=settings)

        def make(folder: Path) -> artifact.Stats:
            loses = write(folder)
            artifact.write_text(folder / "encoder.yaml", encoder_yaml(self.config, output))
            stats = self.manifest.stats
            return {
                "documents": stats["vectors"],
                "impacts": stats["nonzeros"],
                "queries": len(self._queries.topics),
                "document_scale": stats["document_scale"],
                "query_scale": self.config.query_scale,
                "bytes": artifact.folder_bytes(folder),
                LOSES: [f"quantization of the impacts: {loss_text(stats['loss'])}", *loses],
            }

        return artifact.require(artifact.make(output, recipe, make), "export")


class Keys:
    """Integer keys of terms: the ids of tokens, and after them those of words, by their first occurrence."""

    def __init__(self, terms: list[str]):
        self._keys = {term: key for key, term in enumerate(terms)}

    def of_document(self, vector: dict[str, int]) -> dict[int, int]:
        """The impacts of a document by key; new words get one."""
        return {self._keys.setdefault(term, len(self._keys)): impact for term, impact in vector.items()}

    def of_query(self, vector: dict[str, int]) -> dict[int, int]:
        """The weights of a query by key, without words that no document has."""
        return {self._keys[term]: weight for term, weight in vector.items() if term in self._keys}

    def write(self, path: Path) -> None:
        """Write a line per term; its number, counted from 0, is the key."""
        path.write_text("".join(f"{term}\n" for term in self._keys), encoding="utf-8")
