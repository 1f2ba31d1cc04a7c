"""A folder in BEIR's format."""

from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

from cai_pyserini.collection.contract import Collection, Judgment, Record, checked_id
from cai_pyserini.core import jsonl
from cai_pyserini.core.artifact import file_digest
from cai_pyserini.core.errors import CaiError


class BeirFolder(Collection):
    """corpus.jsonl (`_id`, `title`, `text`), queries.jsonl (`_id`, `text`) and qrels/SPLIT.tsv; .jsonl.gz works too."""

    def __init__(self, folder: Path, name: str, fields: Iterable[str] = ("title", "text")):
        super().__init__(name, fields)
        if not folder.is_dir():
            raise CaiError(f"no collection folder {folder}")
        self.folder = folder

    @property
    def place(self) -> str:
        return str(self.folder)

    @cached_property
    def size(self) -> int | None:
        corpus = self._file("corpus.jsonl")
        if corpus.suffix == ".gz":
            return None
        with corpus.open("rb") as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))

    def _documents(self) -> Iterator[Record]:
        return self._records("corpus.jsonl")

    def _queries(self, split: str) -> Iterator[Record]:
        return self._records("queries.jsonl")

    def _records(self, name: str) -> Iterator[Record]:
        for where, data in jsonl.read(self._file(name)):
            for key in ("_id", "text"):
                if key not in data:
                    raise CaiError(f"{where}: no {key!r}")
            title, text = data.get("title") or "", data["text"] or ""
            if not isinstance(title, str) or not isinstance(text, str):
                raise CaiError(f"{where}: title and text must be strings")
            yield Record(where, checked_id(data["_id"], where), title, text)

    def _qrels(self, split: str) -> Iterator[Judgment]:
        header = True
        for where, line in jsonl.read_lines(self._qrels_path(split)):
            columns = line.rstrip("\r\n").split("\t")
            if len(columns) != 3:
                raise CaiError(
                    f"{where}: {len(columns)} columns; expected query-id, corpus-id and score, tab-separated"
                )
            query, document, grade = columns
            if header:
                if grade.lstrip("-").isdigit():
                    raise CaiError(f"{where}: no header; the first line of BEIR qrels is query-id, corpus-id, score")
                header = False
                continue
            try:
                yield Judgment(where, checked_id(query, where), checked_id(document, where), int(grade))
            except ValueError:
                raise CaiError(f"{where}: the score {grade!r} is not an integer") from None

    def _fingerprint(self, component: str) -> object:
        names = {"documents": "corpus.jsonl", "queries": "queries.jsonl"}
        return file_digest(self._file(names[component]) if component in names else self._qrels_path(component))

    def _qrels_path(self, split: str) -> Path:
        path = self.folder / "qrels" / f"{split}.tsv"
        if not path.is_file():
            splits = ", ".join(sorted(p.stem for p in self.folder.glob("qrels/*.tsv"))) or "none"
            raise CaiError(f"no file {path}; splits of this collection: {splits}")
        return path

    def _file(self, name: str) -> Path:
        for path in (self.folder / name, self.folder / f"{name}.gz"):
            if path.is_file():
                return path
        raise CaiError(f"no file {self.folder / name}: a BEIR-format folder has corpus.jsonl, queries.jsonl and qrels/")
