"""Excerpts within a budget of tokens: how often the answer to a question is in them.

Peers return the passages of their defaults in the order of their ranking: BM25's of 100 words, LangChain's and
LlamaIndex's by the same dense encoder. An answer counts if it is in the first tokens of a document that has it, 4 bytes
of UTF-8 each; of ours, titles, docids and the words before excerpts count as well.

The questions in benchmarks/questions are about handbooks that Debian packages ship (downloads 30 MB, with apt-get) and,
with --xquad, a BEIR folder of XQuAD in German, about articles of Wikipedia, joined from five paragraphs each. Settings
were chosen with every second question about handbooks, from the first on; the others and XQuAD measure. Needs
langchain-core, langchain-text-splitters and llama-index-core.

    python benchmarks/excerpts.py --packages data/packages --output runs/excerpts
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import harness

PACKAGES = (
    *("aptitude-doc-en", "debian-faq", "debian-handbook", "debian-kernel-handbook", "debian-policy"),
    *("debian-reference-en", "developers-reference", "git-doc", "graphviz-doc", "harden-doc", "maint-guide", "privoxy"),
)
DUPLICATES = ("developers-reference.html", "policy.html")  # of their chapters, which are files, too
WORDS = range(300, 20_001)  # of a document
PARAGRAPHS = 5  # of an article
BUDGETS = (1000, 2000)
BYTES = 4  # per token
DEPTH = 40  # passages of a peer

Found = list[tuple[str, str]]  # ids of documents, and texts
Ask = Callable[[str, int], Found]  # of a question and a budget
OURS = "excerpts"
QUESTIONS = Path(__file__).parent / "questions"


def handbooks(packages: Path) -> dict[str, str]:
    """The texts of the pages of handbooks, by package and file name."""
    from cai_pyserini.collections.file_text import read_file
    from cai_pyserini.collections.formats import Text

    harness.download(PACKAGES, packages)
    texts: dict[str, str] = {}
    for package in PACKAGES:
        found = sorted((packages / package).rglob("*.htm*"))
        paths = [path for path in found if path.is_file() and not path.is_symlink()]
        english = [path for path in paths if "en-US" in path.parts] or paths
        for path in (each for each in english if each.name not in DUPLICATES):
            _, read = read_file((bytes(path), "html"))
            if isinstance(read, Text) and len(read.text.split()) in WORDS:
                texts[f"{package}/{path.name}"] = read.text
    return texts


def articles(folder: Path) -> dict[str, str]:
    """The articles of XQuAD, whose paragraphs are documents in order: d0, d1, …"""
    lines = (json.loads(line) for line in (folder / "corpus.jsonl").read_text("utf-8").splitlines())
    paragraphs = {line["_id"]: line["text"] for line in lines}
    return {
        f"a{first // PARAGRAPHS}": "\n\n".join(paragraphs[f"d{first + n}"] for n in range(PARAGRAPHS))
        for first in range(0, len(paragraphs), PARAGRAPHS)
    }


def ours(name: str, texts: Mapping[str, str], folder: Path, systems: list[str], **settings: Any) -> dict[str, Ask]:
    """Our excerpts by system, and BM25's passages in the order of their ranking."""
    import cai_pyserini as cai
    from cai_pyserini.core import files, jsonl
    from cai_pyserini.engine.hits import Documents

    folder.mkdir(parents=True, exist_ok=True)
    jsonl.write(folder / name / "corpus.jsonl", ({"_id": id, "title": "", "text": text} for id, text in texts.items()))
    language = "de" if name.endswith("-de") else "en"
    files.write_text(folder / f"{name}.yaml", f"source: {name}\nlanguage: {language}\n")
    opened = cai.run(folder / f"{name}.yaml", systems, folder=folder / "run", evaluate=False, passages=100, **settings)
    engines = {name: opened[name] for name in systems}

    def ask(name: str) -> Ask:
        return lambda query, budget: [(each.docid, each.text) for each in engines[name].excerpts(query, budget)]

    def plain(query: str, _: int) -> Found:
        engine = engines["bm25"]
        (found,) = engine.parts.of_passages().find([query], DEPTH, Documents(engine._read))
        found.rank(DEPTH)
        return [(hit.id.rpartition("#")[0], hit.text) for hit in found.hits]

    return {"BM25, passages of 100 words": plain} | {f"excerpts, {name}": ask(name) for name in systems}


def langchain(texts: Mapping[str, str]) -> Ask:
    from langchain_core.embeddings import Embeddings
    from langchain_core.vectorstores import InMemoryVectorStore
    from langchain_text_splitters import RecursiveCharacterTextSplitter

    import cai_pyserini as cai

    encoder = cai.Encoder("minilm")

    class Encoder(Embeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return encoder.encode_document(texts).tolist()

        def embed_query(self, text: str) -> list[float]:
            return encoder.encode_query(text).tolist()

    splitter = RecursiveCharacterTextSplitter(chunk_size=1000, chunk_overlap=200)
    store = InMemoryVectorStore(Encoder())
    store.add_documents(splitter.create_documents([*texts.values()], [{"id": id} for id in texts]))
    return lambda query, _: [
        (each.metadata["id"], each.page_content) for each in store.similarity_search(query, k=DEPTH)
    ]


def llama_index(texts: Mapping[str, str]) -> Ask:
    from llama_index.core import Document, VectorStoreIndex
    from llama_index.core.embeddings import BaseEmbedding
    from llama_index.core.node_parser import SentenceSplitter

    import cai_pyserini as cai

    encoder = cai.Encoder("minilm")

    class Encoder(BaseEmbedding):
        def _get_text_embedding(self, text: str) -> list[float]:
            return encoder.encode_document(text).tolist()

        def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
            return encoder.encode_document(texts).tolist()

        def _get_query_embedding(self, query: str) -> list[float]:
            return encoder.encode_query(query).tolist()

        async def _aget_query_embedding(self, query: str) -> list[float]:
            return self._get_query_embedding(query)

    splitter = SentenceSplitter(chunk_size=1024, chunk_overlap=20)
    documents = [Document(text=text, id_=id) for id, text in texts.items()]
    index = VectorStoreIndex(splitter.get_nodes_from_documents(documents), embed_model=Encoder(embed_batch_size=512))
    retriever = index.as_retriever(similarity_top_k=DEPTH)

    def ask(query: str, _: int) -> Found:
        return [(found.node.ref_doc_id or "", found.node.get_content()) for found in retriever.retrieve(query)]

    return ask


def has_answer(question: Mapping[str, str], found: Iterable[tuple[str, str]], budget: int) -> float:
    """1 if the answer is in the first tokens of what was found, in its document; otherwise 0."""
    answer, left = _plain(question["answer"]), BYTES * budget
    for id, text in found:
        shown = text.encode()[:left].decode(errors="ignore")
        left -= len(shown.encode())
        if id == question["document"] and answer in _plain(shown):
            return 1.0
    return 0.0


def _plain(text: str) -> str:
    from cai_pyserini.core.text import normalized

    return " ".join(normalized(text).split())


def show(title: str, questions: list[dict[str, str]], asks: Mapping[str, Ask]) -> None:
    """Print the share of answers of each budget, and how it differs from that of the best of ours."""
    values: dict[str, dict[int, dict[str, float]]] = {}
    for name, ask in asks.items():
        print(f"{title}: {name}", file=sys.stderr)
        values[name] = {budget: {} for budget in BUDGETS}
        for number, question in enumerate(questions):
            for budget in BUDGETS:
                found = ask(question["question"], budget)
                values[name][budget][str(number)] = has_answer(question, found, budget)
    own = [name for name in values if name.startswith(OURS)]
    best = {
        budget: max((values[name][budget] for name in own), key=lambda of: fmean(of.values())) for budget in BUDGETS
    }
    rows = []
    for name, of_budgets in values.items():
        cells = []
        for budget, of_questions in of_budgets.items():
            is_best = of_questions is best[budget]
            compared = ["", ""] if is_best else harness.compared([best[budget]], [of_questions])
            cells += [f"{_share(of_questions):.3f}", *compared]
        rows.append([name, *cells])
    header = [cell for budget in BUDGETS for cell in (f"{budget:,} tokens", "less the best of ours", "p")]
    harness.show(f"{title}: {len(questions)} questions", ["", *header], rows)


def _share(of_questions: Mapping[str, float]) -> float:
    return fmean(of_questions.values())


def main() -> None:
    parser = harness.parser(__doc__, collection=False, repeats=None)
    parser.add_argument("--packages", type=Path, required=True, help="folder of the unpacked packages")
    parser.add_argument("--xquad", type=Path, help="BEIR folder of XQuAD in German, with its paragraphs in order")
    parser.add_argument("--output", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--systems", nargs="+", default=["bm25", "joint-doc", "trio"])
    args = parser.parse_args()
    sets = [("handbooks", handbooks(args.packages), args.systems, {"dense": "minilm"})]
    if args.xquad:
        sets.append(("xquad-de", articles(args.xquad), ["bm25"], {}))
    for name, texts, systems, settings in sets:
        lines = (QUESTIONS / f"{name}.jsonl").read_text("utf-8").splitlines()
        asks = ours(name, texts, args.output / name, systems, **settings)
        asks |= {"LangChain, 1,000 characters": langchain(texts), "LlamaIndex, 1,024 tokens": llama_index(texts)}
        questions = [*map(json.loads, lines)]
        if name == "handbooks":
            show("handbooks, settings chosen", questions[0::2], asks)
            questions = questions[1::2]
        show(name, questions, asks)


if __name__ == "__main__":
    main()
