"""What works with each kind of folder, and docs/reference/models.md, which says so:

python -m tests.models.matrix --write
"""

import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sentence_transformers import SparseEncoder

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.indexes.dense_index import index_dense
from cai_pyserini.indexes.impact_index import index_impacts
from cai_pyserini.models.encoder import Encoder
from cai_pyserini.vectors.encode import encode
from cai_pyserini.vectors.queries import encode_queries
from cai_pyserini.vectors.shards import Vectors
from cai_pyserini.vectors.weighting import write_impacts
from tests.models.kinds import ALL, DOCUMENTS, KINDS, QUERIES, SPARSE, TEXTS, TINY, BuiltKind, Pair, make

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "models.md"
YES = "✓"
QUERY = "marathon runners, with heart attacks and repeated repeated repeated words"


class BuiltKinds:
    """Kinds in a folder, each built once, with one index each."""

    def __init__(self, root: Path):
        self.root = root
        self._built: dict[str, BuiltKind] = {}

    def __getitem__(self, name: str) -> BuiltKind:
        if name not in self._built:
            self._built[name] = make(name, self.root / str(len(self._built)))
        return self._built[name]

    def index(self, name: str) -> Path:
        """An index of the tiny collection."""
        made, folder = self[name], self[name].folder.with_name("stages")
        if not (output := folder / "index").exists():
            encoder = Encoder(load_encoder(str(made.yaml)), "cpu", "float32")
            encoded = Vectors(encode(BeirFolder(TINY, "tiny"), encoder, folder / "vectors"))
            if name in SPARSE:
                index_impacts(write_impacts(encoded, encoder.config, folder / "impacts"), output)
            else:
                index_dense(encoded, output)
        return output


def vectors_of(spec: Path, texts: Sequence[str], batch_size: int | None = None) -> Pair:
    """Our vectors of texts as documents and as queries."""
    made = Encoder(load_encoder(str(spec)), "cpu", "float32")
    documents = made.load("documents").encode(texts, made.config.max_document_length, batch_size)
    both = documents, encode_queries(made, texts)
    documents, queries = (each.toarray() if isinstance(each, csr_matrix) else each for each in both)
    return documents, queries


def difference(found: Pair, expected: Pair) -> float:
    return max(float(abs(one - other[: len(one)]).max()) for one, other in zip(found, expected, strict=True))


def vectors(kinds: BuiltKinds, name: str) -> str:
    """The largest difference of document and query vectors in float32 from the library's."""
    made = kinds[name]
    apart = max(difference(vectors_of(made.yaml, *each), made.expected) for each in ((ALL, None), (TEXTS, 1)))
    assert apart <= 1e-4
    return f"≤ 1e{max(-5, int(np.ceil(np.log10(max(apart, 1e-9)))))}"


def plugin(kinds: BuiltKinds, name: str) -> str:
    """CaiQueryEncoder and CaiDocumentEncoder return the same vectors, or impacts."""
    from cai_pyserini.plugin.encoders import CaiDocumentEncoder, CaiQueryEncoder
    from cai_pyserini.vectors.texts import TYPICAL_RANGE

    made = kinds[name]
    documents, queries = made.expected
    of_query = CaiQueryEncoder(str(made.yaml), device="cpu").encode(QUERY)
    of_documents = CaiDocumentEncoder(str(made.yaml), "cpu", "float32").encode(TEXTS)
    expected = queries[TEXTS.index(QUERY)]
    if not isinstance(of_query, dict):
        np.testing.assert_allclose(of_query, expected, atol=1e-4)
        np.testing.assert_allclose(of_documents, documents[: len(TEXTS)], atol=1e-4)
        return YES
    encoder = Encoder(load_encoder(str(made.yaml)), "cpu")
    assert_impacts(of_query, expected * 10_000, encoder)
    largest = 2**16 - 1
    for found, weights in zip(of_documents, documents, strict=False):
        assert_impacts(found, np.minimum(weights * largest / TYPICAL_RANGE, largest), encoder)
    return YES


def assert_impacts(found: Any, weights: np.ndarray, encoder: Encoder) -> None:
    """Assert that impacts are rounded weights."""
    vector = np.zeros_like(weights)
    for term, impact in found.items():
        vector[encoder.tokenizer.terms.index(term)] = impact
    np.testing.assert_allclose(vector, weights, atol=1)


def service(kinds: BuiltKinds, name: str) -> str:
    """The scores of hits are dot products of the library's vectors, up to quantization."""
    from cai_pyserini.engine.open import open_index

    engine = open_index(kinds.index(name), None if name in SPARSE else str(kinds[name].yaml), device="cpu")
    documents, queries = (matrix[len(TEXTS) :] for matrix in kinds[name].expected)
    products = queries[len(DOCUMENTS) :] @ documents[: len(DOCUMENTS)].T
    for text, scores in zip(QUERIES.values(), products, strict=True):
        (hits,) = engine.search([text], len(DOCUMENTS))
        found = {hit.id: hit.score for hit in hits}
        expected = dict(zip(DOCUMENTS, scores.tolist(), strict=True))
        near = 2e-3 * max(*map(abs, expected.values()), 1)
        assert {id: found.get(id, 0.0) for id in DOCUMENTS} == pytest.approx(expected, abs=near)
    engine.close()
    return YES


def ship(kinds: BuiltKinds, name: str) -> str:
    """A shipped encoder, and a shipped index with it, work without the original folder."""
    from cai_pyserini.plugin.encoders import CaiQueryEncoder
    from cai_pyserini.share.encoder import ship_encoder
    from cai_pyserini.share.index import ship_index

    index_folder = kinds.index(name)
    here = kinds[name].folder.parent
    shipped = here.with_name(f"{here.name}-shipped")
    ship_encoder(str(kinds[name].yaml), shipped / "encoder", "mit")
    if name in SPARSE:  # dense indexes name no encoder
        ship_index(index_folder, shipped / "index", with_encoder=True)
    query = CaiQueryEncoder(str(kinds[name].yaml), device="cpu").encode(QUERY)
    here.rename(away := here.with_name("away"))
    try:
        assert difference(vectors_of(shipped / "encoder", TEXTS), kinds[name].expected) <= 1e-4
        for archive in (shipped / "index").glob("*.tar.gz"):
            with tarfile.open(archive) as tar:
                tar.extractall(shipped / "unpacked", filter="data")
            (index,) = (shipped / "unpacked").iterdir()
            encoder = CaiQueryEncoder(str(index), device="cpu")
            encoder.require_same_encoder(index)
            assert encoder.encode(QUERY) == query
    finally:
        away.rename(here)
        shutil.rmtree(shipped, ignore_errors=True)
    return YES


def export(kinds: BuiltKinds, name: str) -> str:
    """The folder of `export sentence-transformers` yields the same vectors in that library."""
    from cai_pyserini.share.sentence_transformers import write_sparse_encoder
    from cai_pyserini.share.source import export_encoder

    output = kinds[name].folder.with_name("exported")
    config = load_encoder(str(kinds[name].yaml))
    export_encoder(config, output, "sentence-transformers", write_sparse_encoder)
    model = SparseEncoder(str(output), device="cpu")
    made = [encode(TEXTS).to_dense().numpy() for encode in (model.encode_document, model.encode_query)]
    for found, expected in zip(made, kinds[name].expected, strict=True):
        full = [i for i, text in enumerate(TEXTS) if text.strip()]
        np.testing.assert_allclose(found[full], expected[full], atol=1e-4)
    return YES


COLUMNS: dict[str, Callable[[BuiltKinds, str], str]] = {
    "vectors": vectors,
    "plugin": plugin,
    "search": service,
    "ship and load": ship,
    "export to sentence-transformers": export,
}


def cell(kinds: BuiltKinds, name: str, column: str) -> str:
    """The page's entry for a kind and a column; a refusal's message is shown without the folder."""
    try:
        return COLUMNS[column](kinds, name)
    except CaiError as error:
        return str(error).replace(str(kinds[name].folder), "it").replace("mine ", "it ")


def page_cells() -> dict[tuple[str, str], str]:
    """The cells of the page, by kind and column."""
    lines = [line.strip("| \n").split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if "|" in line]
    return {(name, column): cell for name, *cells in lines[2:] for column, cell in zip(COLUMNS, cells, strict=False)}


def rows(kinds: BuiltKinds) -> Iterator[str]:
    yield from (f"| kind | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|")
    for name in KINDS:
        print(name, file=sys.stderr)
        yield f"| {name} | {' | '.join(cell(kinds, name, column) for column in COLUMNS)} |"


def main() -> None:
    with tempfile.TemporaryDirectory() as root:
        table = "\n".join(rows(BuiltKinds(Path(root))))
    if "--write" in sys.argv:
        before = PAGE.read_text(encoding="utf-8").partition("| kind |")[0]
        PAGE.write_text(f"{before}{table}\n", encoding="utf-8")
    else:
        print(table)


if __name__ == "__main__":
    main()
