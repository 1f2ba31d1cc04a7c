"""What the snippet of a long text costs: a text of random words with Zipf's frequencies, and a query of six of them."""

import time
from collections.abc import Callable

import harness
import numpy as np

from cai_pyserini.engine.highlight import words_that_may_match
from cai_pyserini.engine.reasons import best_passage, query_beginnings, words_of
from cai_pyserini.indexes.analyzer import Analyzer

QUERY = "word77 word777 word7777 word17777 word33333 word44444"


def main() -> None:
    harness.parser(__doc__, collection=False, repeats=None).parse_args()
    stems = Analyzer()
    of_query = {word: stems(word) for word in words_of(QUERY)}
    whole = " ".join(" ".join(row) for row in harness.random_texts(np.random.default_rng(0), 5_000))

    def milliseconds(work: Callable[[], object]) -> str:
        start = time.perf_counter()
        work()
        return f"{1000 * (time.perf_counter() - start):.0f}"

    rows = []
    for size in (20_001, 200_000, 2_000_000):
        text = whole[:size]
        passage = [milliseconds(lambda text=text: best_passage(text, QUERY, stems)) for _ in range(2)]
        words = milliseconds(lambda text=text: words_that_may_match(text, lambda: query_beginnings(of_query)))
        rows.append([f"{len(text):,}", *passage, words, milliseconds(lambda text=text: stems(text))])
    header = ["characters", "snippet, ms", "again, ms", "words that may match, ms", "analysis of the text, ms"]
    harness.show("snippets", header, rows)


if __name__ == "__main__":
    main()
