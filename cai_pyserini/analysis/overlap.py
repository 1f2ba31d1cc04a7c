"""How far the words of collections are from each other: weighted Jaccard similarity (Iida & Okazaki 2022, Appendix E).

    J(A, B) = Σ_t min(A_t, B_t) / Σ_t max(A_t, B_t)

A_t is the share of word t in all occurrences of words in A. A word is a run of letters, digits and underscores of the
lower-cased contents (title and text), stop words included: the regular expression \\w+. The paper, which follows
Thakur et al. 2021, says no more than "word", so its values may differ.

Counting a large collection once is enough: --save-frequencies writes its table, which then stands for the collection.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, permutations
from pathlib import Path
from typing import TYPE_CHECKING

from cai_pyserini import artifact, cli
from cai_pyserini.analysis import output
from cai_pyserini.cli import CaiError
from cai_pyserini.collection import lines
from cai_pyserini.figure import figure
from cai_pyserini.trainer import corpus

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORD = r"\w+"
TABLE = (".tsv", ".tsv.gz")
PUBLISHED = {  # J(MS MARCO, collection), Iida & Okazaki 2022, Appendix E
    "nq": 0.523,
    "robust04": 0.475,
    "webis-touche2020": 0.410,
    "fiqa": 0.407,
    "quora": 0.395,
    "arguana": 0.385,
    "climate-fever": 0.384,
    "fever": 0.384,
    "hotpotqa": 0.342,
    "dbpedia-entity": 0.334,
    "scidocs": 0.327,
    "bioasq": 0.317,
    "trec-covid": 0.315,
    "nfcorpus": 0.285,
    "scifact": 0.273,
}


def jaccard(a: Mapping[str, int], b: Mapping[str, int]) -> float:
    """J(A, B) of two tables of word counts, neither of them empty."""
    total_a, total_b = sum(a.values()), sum(b.values())
    shared = sum(min(a[word] / total_a, b[word] / total_b) for word in a.keys() & b.keys())
    return shared / (2 - shared)  # min + max of two shares is their sum, and each table's shares sum to 1


def frequencies(spec: str) -> Counter[str]:
    """The word counts of a corpus, or those in a table: a .tsv file with a word, a tab and its count in a line.

    Raises CaiError for a corpus that is missing, broken or without words, and for a line that is no count of a word.
    """
    counts: Counter[str] = Counter()
    if spec.endswith(TABLE):
        for number, line in lines(Path(spec)):
            word, _, count = line.rstrip("\r\n").partition("\t")
            if not count.isdecimal():
                raise CaiError(f"{spec}:{number}: expected a word, a tab and its count, as --save-frequencies writes")
            counts[word] += int(count)
    else:
        find = re.compile(WORD).findall
        for text in cli.progress(corpus.texts([spec]), None, spec, "text"):
            counts.update(find(text.lower()))
    if not counts.total():
        raise CaiError(f"{spec} has no words")
    return counts


def plot(names: Sequence[str], similarities: Mapping[tuple[str, str], float]) -> "Figure":
    """A heatmap of all pairs."""
    import numpy as np

    size = 2 + 0.8 * len(names)
    made, axes = figure("", "", "Weighted Jaccard similarity of words", (size + 0.5, size))
    matrix = np.eye(len(names))
    for pair, similarity in similarities.items():
        for i, j in permutations([names.index(name) for name in pair]):
            matrix[i, j] = similarity
            axes.text(i, j, f"{similarity:.3f}", ha="center", va="center")
    axes.imshow(matrix, cmap="Blues", vmin=0, vmax=1, alpha=0.7)
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), names)
    axes.grid(visible=False)
    return made


def main() -> None:
    parser = cli.parser(
        "Measure how similar the words of collections are, such as those of a collection and of MS MARCO.",
        "python -m cai_pyserini.analysis.gap hpo path/to/scifact msmarco.tsv --output gap",
    )
    parser.add_argument(
        "collections",
        nargs="+",
        help="names in index_configs/, YAML files, BEIR folders, .txt (a text a line) or .jsonl files, saved tables",
    )
    parser.add_argument("--output", type=Path, required=True, help="folder for gap.json, gap.png and tables")
    parser.add_argument(
        "--save-frequencies", action="store_true", help="write the word counts of each as NAME.tsv, a table"
    )
    args = parser.parse_args()
    if len(args.collections) < 2 and not args.save_frequencies:
        raise CaiError("one collection has nothing to be compared with: name another, or --save-frequencies")
    tables: dict[str, Counter[str]] = {}
    for spec in args.collections:
        path = Path(spec).resolve()
        name = path.name if path.is_dir() else path.name.partition(".")[0]
        if name in tables:
            raise CaiError(f"{spec}: another collection is named {name}, too; rename one of them")
        tables[name] = frequencies(spec)
    if args.save_frequencies:
        for name, counts in tables.items():
            table = "".join(f"{word}\t{count}\n" for word, count in counts.most_common())
            artifact.write_text(args.output / f"{name}.tsv", table)
            print(f"{args.output / name}.tsv: {counts.total():,} words, {len(counts):,} of them different")
    if len(tables) < 2:
        return
    similarities = {(a, b): jaccard(tables[a], tables[b]) for a, b in combinations(tables, 2)}
    rows = [["collection", "collection", "J", "Iida & Okazaki 2022"]]
    pairs = []
    for (a, b), similarity in similarities.items():
        published = PUBLISHED.get(b if a == "msmarco" else a) if "msmarco" in (a, b) else None
        rows.append([a, b, f"{similarity:.3f}", f"{published:.3f}" if published else ""])
        pairs.append({"collections": [a, b], "similarity": similarity, "published": published})
    if not any(pair["published"] for pair in pairs):
        rows = [row[:-1] for row in rows]
    words = {name: {"words": counts.total(), "different": len(counts)} for name, counts in tables.items()}
    output.write(args.output, "gap", rows, {"collections": words, "pairs": pairs}, plot(list(tables), similarities))


if __name__ == "__main__":
    cli.run(main)
