"""Make the demo, a page that searches in the browser, from a joint index of a run; compare N queries with Lucene.

cai-pyserini run hpo --dense minilm --systems joint-doc-near --output build/hpo
python docs/demo.py build/hpo/indexes/joint-splade-idf-near build/site/demo [N]
"""

import gzip
import json
import random
import re
import shutil
import sys
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from cai_pyserini.collections.hpo import Hpo
from cai_pyserini.core.config import ENGLISH, WORD
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.text import normalized
from cai_pyserini.engine.hits import without_title
from cai_pyserini.engine.open import open_index
from cai_pyserini.indexes.accents import plain_spellings
from cai_pyserini.indexes.engines import open_searcher
from cai_pyserini.plugin.source import Source

ROOT = Path(__file__).parents[1]
Rankings = list[list[list[str | float]]]  # [id, score] of each hit of each query
CHARACTERS = [*map(chr, range(128, 0x30000))]
CHANGES, SEPARATORS = ("{}", "({}),", "{}'s", "β-{}", "{}ing", "{}12.5", "non{}", "É{}", "{}ﬁé"), " ;-/._:'&+\t"


def write(index: Path, output: Path) -> int:
    """Write the page with an index's impacts, documents in the order of ids, and their texts; return the bytes to
    download. Raises CaiError for an index of another kind."""
    source = Source(index.parents[1] / "impacts" / index.name)
    config, tokenizer, joint = source.config, source.encoder.tokenizer, source.config.joint
    is_weighted = config.binary_queries or source.encoder.token_weights is not None
    if not joint or joint.language != ENGLISH or is_weighted or tokenizer.settings["model"]["type"] != "WordPiece":
        raise CaiError(f"{index}: the page searches joint indexes in English, whose queries are counts of word pieces")
    vectors = dict(sorted(source.documents()))
    words = {term for vector in vectors.values() for term in vector if term.startswith(WORD)}
    numbers = {term: number for number, term in enumerate([*tokenizer.terms, *sorted(words)])}
    pairs = ((document, pair) for document, vector in enumerate(vectors.values()) for pair in vector.items())
    postings = np.array([(numbers[term], document, impact) for document, (term, impact) in pairs])
    postings = postings[np.argsort(postings[:, 0], kind="stable")]
    columns = [column.astype(np.uint16) for column in (np.diff(postings[:, 1], prepend=0), postings[:, 2])]
    with closing(open_searcher(index)) as searcher:
        stored = searcher.read([*vectors])
    release = re.search("^data-version: (.+)$", Hpo().path.read_text(encoding="utf-8"), re.MULTILINE)
    scale = source.manifest.stats["document_scale"]
    data = {
        "documents": [(id, stored[id].title, without_title(stored[id])) for id in vectors],
        "terms": [*numbers],
        "lengths": np.bincount(postings[:, 0], minlength=len(numbers)).tolist(),
        "documentScale": scale,
        "queryScale": config.query_scale,
        "wordScale": joint.alpha["bow"] * config.query_scale * scale / joint.scale,
        "longest": config.max_query_length - 2,
        "characters": {each: other for each in CHARACTERS if (other := normalized(each)) != each},
        "plainLetters": {each: plain for each in CHARACTERS if (plain := plain_spellings(each)) != [each.lower()]},
        "about": {"encoder": config.source, "release": release and release[1]},
    }
    shutil.copytree(ROOT / "docs" / "demo", output, dirs_exist_ok=True)
    shutil.copy(ROOT / "cai_pyserini" / "service" / "style.css", output)
    planes = b"".join((column >> shift).astype(np.uint8).tobytes() for column in columns for shift in (0, 8))
    for name, content in (("index.bin", json.dumps(data).encode()), ("postings.bin", planes)):
        (output / name).write_bytes(gzip.compress(content, mtime=0))  # not .gz, which some servers unpack
    return sum(path.stat().st_size for path in output.iterdir())


def opened(browser: Any, output: Path, query: str = "") -> Any:
    """The page in a browser of Playwright, without a server."""
    page = browser.new_page()
    page.route("**/*", lambda route: route.fulfill(path=output / urlsplit(route.request.url).path[1:]))
    page.goto(f"http://demo/index.html{query}")
    return page


def found_in_browser(page: Any, queries: list[str]) -> Rankings:
    """The best ten hits that the page finds for each query."""
    hits = "(query) => index.search(query).hits.map((hit) => [hit.id, hit.score])"
    return page.evaluate(f"(queries) => import('./page.js').then(({{ index }}) => queries.map({hits}))", queries)


def found_by_lucene(index: Path, queries: list[str]) -> Rankings:
    with open_index(index, query="bow") as engine:
        return [[[hit.id, hit.score] for hit in engine.search(query)] if query.strip() else [] for query in queries]


def changed(texts: list[str], count: int) -> list[str]:
    """Words of texts, with other endings, beginnings and punctuation."""
    draw, queries = random.Random(42), [""]  # noqa: S311
    while len(queries) < count:
        words = draw.choice(texts).split()
        made = [draw.choice(CHANGES).format(word) for word in draw.sample(words, draw.randint(1, min(6, len(words))))]
        queries.append(getattr(draw.choice(SEPARATORS).join(made), draw.choice(["strip", "upper", "title"]))())
    return queries


def check(index: Path, output: Path, count: int) -> None:
    from playwright.sync_api import sync_playwright  # only needed here

    queries = [*Hpo().topics("test").values()][: count // 2]
    queries += changed([f"{each.title} {each.text}" for each in Hpo().records()], count - len(queries))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        pairs = zip(found_in_browser(opened(browser, output), queries), found_by_lucene(index, queries), strict=True)
    differ = [query for query, (ours, lucenes) in zip(queries, pairs, strict=True) if ours != lucenes]
    print(f"{count - len(differ):,} of {count:,} queries have Lucene's hits", *map(repr, differ), sep="\n")


if __name__ == "__main__":
    index, output, *count = sys.argv[1:]
    print(f"{output}: {write(Path(index), Path(output)) / 1e6:.1f} MB")
    if count:
        check(Path(index), Path(output), int(*count))
