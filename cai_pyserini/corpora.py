"""Domain corpora in BEIR's format: PubMed's baseline, S2ORC's abstracts, and BioASQ's articles and questions.

Every input file becomes a part of its own, so that a run that was killed goes on at the file where it stopped. Then
the parts are joined, from the last article back to the first: the version of an article that is met first is its last.
"""

import gzip
import json
import re
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from io import BufferedIOBase
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from xml.etree import ElementTree

from cai_pyserini import artifact, cli
from cai_pyserini.artifact import file_digest
from cai_pyserini.cli import CaiError
from cai_pyserini.collection import Ids
from cai_pyserini.report import aligned

if TYPE_CHECKING:
    from tqdm import tqdm


class Article(NamedTuple):
    """An article of a source; its abstract is empty where it has none, and None where the source deletes it."""

    id: str
    title: str
    abstract: str | None


class Question(NamedTuple):
    """A question of BioASQ's, and the ids of the articles that are relevant to it."""

    text: str
    relevant: list[str]


def pubmed(file: BufferedIOBase, path: Path) -> Iterator[Article]:
    """The articles of an XML file of PubMed's baseline or updates, and those that it deletes.

    The text of markup is kept; the sections of a structured abstract have their labels before them, as PubMed shows it.
    Raises CaiError for a file that is broken, or is none of PubMed's.
    """
    try:
        # Safe with what comes from the network: expat loads no external entity, and limits how far entities expand.
        events = ElementTree.iterparse(file, ("start", "end"))  # noqa: S314
        root = next(events)[1]
        if root.tag != "PubmedArticleSet":
            raise CaiError(f"{path}: its root is {root.tag}, not PubmedArticleSet; give files of PubMed's baseline")
        for event, element in events:
            if event == "end" and element.tag == "PubmedArticle":
                id = element.findtext("MedlineCitation/PMID", "").strip()
                if not id:
                    raise CaiError(f"{path}: an article has no PMID; download the file again")
                title = element.find("MedlineCitation/Article/ArticleTitle")
                sections = element.iterfind("MedlineCitation/Article/Abstract/AbstractText")
                yield Article(id, "" if title is None else "".join(title.itertext()), " ".join(map(_section, sections)))
                root.clear()
            elif event == "end" and element.tag == "DeleteCitation":
                yield from (Article((pmid.text or "").strip(), "", None) for pmid in element.iterfind("PMID"))
    except ElementTree.ParseError as error:
        raise CaiError(f"{path}:{error.position[0]}: not XML, or cut off ({error}); download it again") from None


def _section(element: ElementTree.Element) -> str:
    label = element.get("Label", "UNLABELLED")
    return ("" if label == "UNLABELLED" else f"{label}: ") + "".join(element.itertext())


def s2orc(file: BufferedIOBase, path: Path) -> Iterator[Article]:
    """The articles of S2ORC's metadata_*.jsonl (2020), or of Semantic Scholar's dataset `abstracts`, without titles.

    Raises CaiError for a broken line.
    """
    for number, line in enumerate(file, 1):
        if text := _decode(line).strip():
            text = text.replace(":::", " ")  # S2ORC's sign for a line break in an abstract
            yield _article(text, f"{path}:{number}", ("corpusid", "paper_id"), "abstract")


def bioasq(file: BufferedIOBase, path: Path) -> Iterator[Article]:
    """The articles of BioASQ's Task A, allMeSH_*.json: `{"articles":[`, an article a line, `]}`; or the lines alone.

    Raises CaiError for a broken line, and where the end is missing.
    """
    opened = closed = False
    for number, line in enumerate(file, 1):
        text = _decode(line).strip()
        if number == 1 and (opening := re.match(r'\{\s*"articles"\s*:\s*\[', text)):
            opened, text = True, text[opening.end() :].lstrip()
        text = text.removesuffix(",")
        if text == "]}" or text.endswith("}]}"):
            closed, text = True, text[:-2]
        if text:
            yield _article(text, f"{path}:{number}", ("pmid",), "abstractText")
    if opened and not closed:
        raise CaiError(f"{path}: it does not end with ]}}, so it is cut off; download it again")


def _decode(data: bytes) -> str:
    """UTF-8, or else Latin-1, as some editions of BioASQ have it."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _article(text: str, where: str, ids: Sequence[str], abstract: str) -> Article:
    """The article of a JSON object: its id is the first of the keys `ids` that it has."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise CaiError(f"{where}: not JSON ({error.msg}); mend or remove it, or download the file again") from None
    id = next((data[key] for key in ids if key in data), None) if isinstance(data, dict) else None
    if not isinstance(id, str | int) or not all(
        isinstance(value, str | None) for value in (data.get("title"), data.get(abstract, 0))
    ):
        raise CaiError(f"{where}: expected an object with {' or '.join(ids)}, and {abstract} (text or null)")
    return Article(str(id), data.get("title") or "", data[abstract] or "")


READERS: dict[str, Callable[[BufferedIOBase, Path], Iterator[Article]]] = {
    "pubmed": pubmed,
    "s2orc": s2orc,
    "bioasq": bioasq,
}
MIN_WORDS = {"pubmed": 128, "s2orc": 128, "bioasq": 0}  # the paper's for its pretraining, BEIR's for BioASQ


def read_questions(paths: Sequence[Path]) -> dict[str, Question]:
    """The questions of BioASQ's Task B by id; relevant are the PMIDs at the ends of the URLs of their documents."""
    questions: dict[str, Question] = {}
    for path in paths:
        try:
            for data in json.loads(_decode(path.read_bytes()))["questions"]:
                pmids = [url.rstrip("/").rpartition("/")[2] for url in data["documents"]]
                if not all(pmid.isdigit() for pmid in pmids):
                    raise CaiError(f"{path}: question {data['id']}: a document's URL has no PMID at its end; remove it")
                questions[data["id"]] = Question(_clean(data["body"]), list(dict.fromkeys(pmids)))
        except json.JSONDecodeError as error:
            raise CaiError(f"{path}:{error.lineno}: not JSON ({error.msg}); mend it or download it again") from None
        except (KeyError, TypeError, AttributeError):
            expected = '{"questions": [{"id": …, "body": …, "documents": [URL, …]}, …]}'
            raise CaiError(f"{path}: expected {expected}; give golden files of Task B") from None
    return questions


def convert(
    source: str, inputs: Sequence[Path], output: Path, min_words: int, question_files: Sequence[Path] = ()
) -> Path:
    """Write a BEIR folder of the articles whose abstracts have `min_words` words or more; 0 keeps those with none.

    An article that is there again counts as the last input has it. With questions, the folder has queries and the split
    test, less the judgments of articles that it lacks. Raises CaiError where nothing is left.
    """
    if missing := next((path for path in (*inputs, *question_files) if not path.is_file()), None):
        raise CaiError(f"no file {missing}")
    artifact.refuse_foreign(output)
    questions = read_questions(question_files)
    digests = [file_digest(path) for path in cli.progress(inputs, len(inputs), "digest", "file")]
    base = {"stage": "corpora", "format": 1, "source": source}
    questions_digests = [file_digest(path) for path in question_files]
    recipe = base | {"inputs": digests, "questions": questions_digests, "min_words": min_words}
    folder = output.with_name(f".{output.name}.parts")
    if not artifact.is_fresh(output, recipe):
        parts = [folder / f"{source}-{digest}.jsonl" for digest in digests]
        with cli.progress(inputs, sum(path.stat().st_size for path in inputs), "read", "B") as bar:
            bar.unit_scale = True
            for path, digest, part in zip(inputs, digests, parts, strict=True):
                part_recipe = base | {"input": digest}
                if artifact.is_fresh(part, part_recipe):
                    bar.update(path.stat().st_size)
                else:
                    with artifact.building(part, part_recipe, folder=False) as (partial, facts):
                        facts["articles"] = _read(source, path, partial, bar)
        with artifact.building(output, recipe) as (partial, facts):
            judged = {id for question in questions.values() for id in question.relevant}
            facts["articles"], found = _join(parts, min_words, judged, partial / "corpus.jsonl")
            if questions:
                facts["questions"] = _write_questions(questions, found, partial)
    artifact.remove(folder)
    return output


def _read(source: str, path: Path, part: Path, bar: "tqdm[Path]") -> int:
    """Write a part: each article of a file as {"_id": …, "title": …, "text": abstract or null}. Returns how many."""
    position = 0
    with path.open("rb") as raw, part.open("w", encoding="utf-8") as out:
        file = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
        try:
            count = 0
            for article in READERS[source](file, path):
                count += 1
                title, abstract = _clean(article.title), article.abstract and _clean(article.abstract)
                data = {"_id": article.id, "title": title, "text": abstract}
                out.write(json.dumps(data, ensure_ascii=False) + "\n")
                bar.update(raw.tell() - position)
                position = raw.tell()
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise CaiError(f"{path}: not a gzip file, or cut off ({error}); download it again") from None
    return count


def _clean(text: str) -> str:
    """`text` in one line, without the halves of surrogate pairs that JSON can have and UTF-8 cannot."""
    return " ".join(text.encode(errors="ignore").decode().split())


def _join(parts: Sequence[Path], min_words: int, judged: set[str], corpus: Path) -> tuple[dict[str, int], set[str]]:
    """Write the corpus. Returns what became of how many articles, and those of `judged` that are in it."""
    counts = dict.fromkeys(("read", "replaced", "without_abstract", "short", "kept"), 0)
    found, seen = set(), Ids()
    total = sum(artifact.require_manifest(part, "corpora")["articles"] for part in parts)
    lines = (line for part in reversed(parts) for line in _backwards(part))
    with corpus.open("wb") as out:
        for line in cli.progress(lines, total, "join", "article"):
            data = json.loads(line)
            later = seen.add(data["_id"])
            if data["text"] is None:
                continue
            counts["read"] += 1
            if later:
                counts["replaced"] += 1
            elif not data["text"] and (min_words or not data["title"]):
                counts["without_abstract"] += 1
            elif len(data["text"].split()) < min_words:
                counts["short"] += 1
            else:
                counts["kept"] += 1
                out.write(line)
                if data["_id"] in judged:
                    found.add(data["_id"])
    if not counts["kept"]:
        raise CaiError(f"none of {total:,} articles has an abstract of {min_words} words or more: lower --min-words")
    return counts, found


def _backwards(path: Path) -> Iterator[bytes]:
    """The lines of a file, the last one first, in 8 bytes a line."""
    with path.open("rb") as file:
        ends = array("q", accumulate(map(len, file), initial=0))
        while ends.pop():
            file.seek(ends[-1])
            yield file.readline()


def _write_questions(questions: dict[str, Question], found: set[str], folder: Path) -> dict[str, int]:
    """Write queries.jsonl and qrels/test.tsv of the questions with an article in `found`. Returns counts."""
    (folder / "qrels").mkdir()
    counts = {"read": len(questions), "kept": 0, "judgments": 0, "judgments_left_out": 0}
    with (
        (folder / "queries.jsonl").open("w", encoding="utf-8") as queries,
        (folder / "qrels" / "test.tsv").open("w", encoding="utf-8") as qrels,
    ):
        qrels.write("query-id\tcorpus-id\tscore\n")
        for id, question in questions.items():
            relevant = [pmid for pmid in question.relevant if pmid in found]
            counts["judgments"] += len(relevant)
            counts["judgments_left_out"] += len(question.relevant) - len(relevant)
            if relevant:
                counts["kept"] += 1
                queries.write(json.dumps({"_id": id, "text": question.text}, ensure_ascii=False) + "\n")
                qrels.writelines(f"{id}\t{pmid}\t1\n" for pmid in relevant)
    if not counts["kept"]:
        raise CaiError("none of the questions' documents is among the articles; give the articles of the same edition")
    return counts


def main() -> None:
    parser = cli.parser(
        "Make a BEIR folder of PubMed's baseline, of S2ORC's abstracts, or of BioASQ's articles and questions.",
        "python -m cai_pyserini.corpora pubmed --input baseline/*.xml.gz --output corpora/pubmed",
    )
    parser.add_argument("source", choices=READERS, help="what the files are; docs/corpora.md says where to get them")
    parser.add_argument(
        "--input", type=Path, nargs="+", required=True, help="PubMed's .xml, S2ORC's .jsonl, BioASQ's .json; .gz or not"
    )
    parser.add_argument("--questions", type=Path, nargs="+", help="of bioasq: golden files of its Task B")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    parser.add_argument(
        "--min-words",
        type=int,
        help="fewest words of an abstract; 0: all articles, also without one; default: 128, of bioasq 0",
    )
    args = parser.parse_args()
    if args.questions and args.source != "bioasq":
        parser.error("--questions goes with bioasq")
    min_words = MIN_WORDS[args.source] if args.min_words is None else args.min_words
    convert(args.source, args.input, args.output, min_words, args.questions or ())
    manifest = artifact.require_manifest(args.output, "corpora")
    labels = {
        "read": "read",
        "replaced": "replaced or deleted further on",
        "without_abstract": "without an abstract",
        "short": f"under {min_words} words",
        "kept": "kept",
    }
    rows = [["articles", "number"], *[[label, f"{manifest['articles'][key]:,}"] for key, label in labels.items()]]
    print("\n".join(aligned(rows)))
    if counts := manifest.get("questions"):
        print(
            f"\n{counts['kept']:,} of {counts['read']:,} questions with {counts['judgments']:,} judgments; "
            f"{counts['judgments_left_out']:,} judgments are of articles that are not there"
        )
    print(f"\n{args.output}")


if __name__ == "__main__":
    cli.run(main)
