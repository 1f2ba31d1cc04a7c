"""Domain corpora, from small files in the real formats."""

import gzip
import json
from pathlib import Path

import pytest

from cai_pyserini.cli.convert import main
from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.collections.convert import convert
from cai_pyserini.core import artifact, jsonl
from cai_pyserini.core.errors import CaiError

PUBMED = """\
<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE PubmedArticleSet PUBLIC "-//NLM//DTD PubMedArticle, 1st January 2025//EN" "https://example.org/pubmed.dtd">
<PubmedArticleSet>
  <PubmedArticle>
    <MedlineCitation Status="MEDLINE" Owner="NLM" IndexingMethod="Automated">
      <PMID Version="1">1</PMID>
      <Article PubModel="Print">
        <Journal><Title>Journal of the naïve</Title></Journal>
        <ArticleTitle>Ca<sup>2+</sup> in <i>E. coli</i> &amp; β-cells.</ArticleTitle>
        <Abstract>
          <AbstractText Label="BACKGROUND" NlmCategory="BACKGROUND">H<sub>2</sub>O is
            <b>w<i>e</i>t</b> (p &lt; 0.05).</AbstractText>
          <AbstractText Label="UNLABELLED" NlmCategory="UNASSIGNED">Naïve\u2009cells.</AbstractText>
          <AbstractText Label="Results">x<m:mo xmlns:m="http://www.w3.org/1998/Math/MathML">=</m:mo>1.</AbstractText>
          <CopyrightInformation>© 2025 Nobody.</CopyrightInformation>
        </Abstract>
      </Article>
      <CommentsCorrectionsList><PMID Version="1">99</PMID></CommentsCorrectionsList>
      <OtherAbstract Type="Publisher" Language="spa"><AbstractText>El agua.</AbstractText></OtherAbstract>
    </MedlineCitation>
  </PubmedArticle>
  <PubmedArticle><MedlineCitation><PMID Version="1">2</PMID><Article>
    <ArticleTitle>[No abstract].</ArticleTitle></Article></MedlineCitation></PubmedArticle>
  <PubmedArticle><MedlineCitation><PMID Version="1">3</PMID><Article>
    <ArticleTitle/><Abstract><AbstractText>Two words.</AbstractText></Abstract></Article></MedlineCitation>
  </PubmedArticle>
</PubmedArticleSet>
"""
FIRST = "BACKGROUND: H2O is wet (p < 0.05). Naïve cells. Results: x=1."


def pubmed(*articles: tuple[str, str], version: int = 1, deleted: tuple[str, ...] = ()) -> str:
    """A PubMed file of articles with these ids and abstracts."""
    body = "".join(
        f'<PubmedArticle><MedlineCitation><PMID Version="{version}">{id}</PMID><Article><ArticleTitle>T</ArticleTitle>'
        f"<Abstract><AbstractText>{text}</AbstractText></Abstract></Article></MedlineCitation></PubmedArticle>\n"
        for id, text in articles
    )
    gone = "".join(f'<PMID Version="1">{id}</PMID>' for id in deleted)
    return f"<PubmedArticleSet>\n{body}<DeleteCitation>{gone}</DeleteCitation>\n</PubmedArticleSet>"


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    """Write a file, gzipped if its name ends with .gz."""
    data = text.encode(encoding)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def corpus(folder: Path) -> dict[str, tuple[str, str]]:
    """Document id -> title, text."""
    return {data["_id"]: (data["title"], data["text"]) for _, data in jsonl.read(folder / "corpus.jsonl")}


def counts(folder: Path) -> tuple[int, ...]:
    """Articles read, replaced, without an abstract, short, kept."""
    return tuple(artifact.require(folder, "convert").stats["articles"].values())


def test_pubmed(tmp_path: Path) -> None:
    folder = convert("pubmed", [write(tmp_path / "1.xml", PUBMED)], tmp_path / "out", 3)
    assert corpus(folder) == {"1": ("Ca2+ in E. coli & β-cells.", FIRST)}
    assert counts(folder) == (3, 0, 1, 1, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.xml", "out"]
    assert sorted(path.name for path in folder.iterdir()) == ["corpus.jsonl", "manifest.json"]


def test_min_words_counts_the_abstract_alone(tmp_path: Path) -> None:
    """0 also keeps articles that have only a title."""
    file = write(tmp_path / "a.xml", pubmed(("1", "word " * 127), ("2", "word " * 128)))
    assert list(corpus(convert("pubmed", [file], tmp_path / "out", 128))) == ["2"]
    folder = convert("pubmed", [write(tmp_path / "b.xml", PUBMED)], tmp_path / "all", 0)
    assert corpus(folder).keys() == {"1", "2", "3"} and corpus(folder)["2"] == ("[No abstract].", "")


def test_the_last_version_counts(tmp_path: Path) -> None:
    files = [
        write(tmp_path / "0001.xml", pubmed(("1", "old"), ("1", "newer"), ("2", "old"), ("3", "old"), ("4", "old"))),
        write(tmp_path / "0002.xml.gz", pubmed(("2", "new"), ("3", ""), ("5", "new"), deleted=("4", "6"))),
        write(tmp_path / "0003.xml", pubmed(("5", "newest"), ("6", "back again"), version=2)),
    ]
    folder = convert("pubmed", files, tmp_path / "out", 1)
    texts = {id: text for id, (_, text) in corpus(folder).items()}
    assert texts == {"1": "newer", "2": "new", "5": "newest", "6": "back again"}
    # Replaced or deleted: 1, 2, 3 and 4 of the first file, 5 of the second; 3 lost its abstract.
    assert counts(folder) == (10, 5, 1, 0, 4)


def test_s2orc_metadata(tmp_path: Path) -> None:
    lines = [
        {"paper_id": "77", "title": "A\ttitle", "abstract": "OBJECTIVE: One.::: METHODS: Zwei für drei.", "year": 2000},
        {"paper_id": "78", "title": "No abstract", "abstract": None, "has_pdf_parse": False},
        {"paper_id": "79", "title": None, "abstract": "Half a pair \ud835 here."},
        {"paper_id": "77", "title": "Again", "abstract": "The same id again."},
    ]
    file = write(tmp_path / "metadata_0.jsonl.gz", "".join(json.dumps(line) + "\n" for line in lines))
    folder = convert("s2orc", [file], tmp_path / "out", 1)
    assert corpus(folder) == {"77": ("Again", "The same id again."), "79": ("", "Half a pair here.")}
    assert counts(folder) == (4, 1, 1, 0, 2)
    of_semantic_scholar = {"corpusid": 217, "openaccessinfo": {"license": None}, "abstract": "Über\nall das und mehr."}
    first = write(tmp_path / "first.jsonl", f"{json.dumps(lines[0])}\n\n{json.dumps(of_semantic_scholar)}\n")
    found = corpus(convert("s2orc", [first], tmp_path / "one", 5))
    assert found["77"] == ("A title", "OBJECTIVE: One. METHODS: Zwei für drei.")
    assert found["217"] == ("", "Über all das und mehr.")


ARTICLE = '{"journal":"J","abstractText":"%s","title":"%s","pmid":"%s","meshMajor":["Humans","Café"],"year":"2019"}'
ARTICLES = [
    ARTICLE % ("Hirschsprung disease is a naïve ganglion.", "Hirschsprung", 101),
    ARTICLE % ("The RET gene.", "Genes.", 102),
    ARTICLE % ("", "Only a title.", 103),
    '{"pmid":"104","title":"Mesh last","abstractText":"Abstract.","meshMajor":["Mice"]}',
]
QUESTIONS = {
    "questions": [
        {
            "id": "q1",
            "body": "Is Hirschsprung disease\n Mendelian?",
            "documents": ["http://www.ncbi.nlm.nih.gov/pubmed/101", "https://pubmed.ncbi.nlm.nih.gov/104/"],
            "type": "summary",
            "ideal_answer": ["Yes."],
        },
        {
            "id": "q2",
            "body": "Which gene?",
            "documents": ["http://www.ncbi.nlm.nih.gov/pubmed/102"] * 2 + ["http://www.ncbi.nlm.nih.gov/pubmed/900"],
        },
        {"id": "q3", "body": "Nowhere?", "documents": ["http://www.ncbi.nlm.nih.gov/pubmed/901"]},
        {"id": "q4", "body": "Nothing?", "documents": []},
    ]
}


@pytest.mark.parametrize(
    "form, encoding",
    [
        ('{"articles":[\n%s\n]}', "utf-8"),
        ('{"articles":[%s]}\n', "latin-1"),
        ('{ "articles" : [\r\n%s]}', "utf-8"),
        ("%s", "latin-1"),
    ],
)
def test_bioasq(tmp_path: Path, form: str, encoding: str) -> None:
    text = form % ("\n" if form == "%s" else ",\n").join(ARTICLES)
    articles = write(tmp_path / "allMeSH_2020.json", text, encoding)
    folder = convert("bioasq", [articles], tmp_path / "out", 0)
    assert corpus(folder) == {
        "101": ("Hirschsprung", "Hirschsprung disease is a naïve ganglion."),
        "102": ("Genes.", "The RET gene."),
        "103": ("Only a title.", ""),
        "104": ("Mesh last", "Abstract."),
    }
    assert counts(folder) == (4, 0, 0, 0, 4)


def test_bioasq_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "allMeSH.json.gz", '{"articles":[\n' + ",\n".join(ARTICLES) + "\n]}\n")
    write(tmp_path / "8B1_golden.json", json.dumps(QUESTIONS))
    main(["bioasq", "--input", "allMeSH.json.gz", "--questions", "8B1_golden.json", "--output", "bioasq"])
    assert capsys.readouterr().out.splitlines() == [
        "articles                         number",
        "---------------------------------------",
        "read                                  4",
        "replaced or deleted later             0",
        "without a title and an abstract       0",
        "kept                                  4",
        "",
        "2 of 4 questions with 3 judgments; left out: 2 judgments of articles that are not in the corpus",
        "",
        "bioasq",
    ]
    collection = BeirFolder(tmp_path / "bioasq", "bioasq")
    assert collection.check("test") == {"documents": 4, "queries": 2, "judgments": 3}
    assert collection.topics("test") == {"q1": "Is Hirschsprung disease Mendelian?", "q2": "Which gene?"}
    assert collection.qrels("test") == {"q1": {"101": 1, "104": 1}, "q2": {"102": 1}}


def test_resumes_at_the_file_where_it_stopped(tmp_path: Path) -> None:
    files = [write(tmp_path / "1.xml", pubmed(("1", "one"))), write(tmp_path / "2.xml", "<PubmedArticleSet>")]
    with pytest.raises(CaiError, match=r"2\.xml:1: not XML, or truncated"):
        convert("pubmed", files, tmp_path / "out", 1)
    assert not (tmp_path / "out").exists()
    (converted,) = (tmp_path / ".out.files").glob("*.jsonl")
    converted.write_text(converted.read_text().replace("one", "ONE"))
    write(files[1], pubmed(("2", "two")))
    folder = convert("pubmed", files, tmp_path / "out", 1)
    assert corpus(folder) == {"2": ("T", "two"), "1": ("T", "ONE")}
    assert not (tmp_path / ".out.files").exists()


def test_only_a_changed_input_is_converted_again(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{i}.json", ARTICLE % (text, "T", 7)) for i, text in enumerate(("one", "two"))]

    def text(inputs: list[Path], *questions: Path) -> tuple[str, int]:
        """The article's text, and the modification time of the corpus."""
        folder = convert("bioasq", inputs, tmp_path / "out", 0, questions)
        return corpus(folder)["7"][1], (folder / "corpus.jsonl").stat().st_mtime_ns

    first = text(files)
    assert first[0] == "two" and text(files) == first
    assert text(files[::-1])[0] == "one"
    documents = {"id": "q", "body": "What?", "documents": ["http://www.ncbi.nlm.nih.gov/pubmed/7"]}
    assert text(files, write(tmp_path / "q.json", json.dumps({"questions": [documents]})))[0] == "two"
    assert BeirFolder(tmp_path / "out", "made").topics("test") == {"q": "What?"}
    write(files[1], ARTICLE % ("three, and longer", "T", 7))
    assert text(files)[0] == "three, and longer"


DOUBLED = "".join(f"<!ENTITY a{i} '&a{i - 1};&a{i - 1};'>" for i in range(1, 31))
BOMB = f"<!DOCTYPE P [<!ENTITY a0 'ha'>{DOUBLED}]><PubmedArticleSet>&a30;</PubmedArticleSet>"
OUTSIDE = '<!DOCTYPE P [<!ENTITY a SYSTEM "file:///etc/passwd">]>\n<PubmedArticleSet>&a;</PubmedArticleSet>'


PAPER = '{"paper_id": %s, "title": %s, "abstract": %s}'


@pytest.mark.parametrize(
    "source, text, message",
    [
        ("pubmed", pubmed(("1", "a")).replace("</Article>", ""), r"a:2: not XML, or truncated \(mismatched"),
        ("pubmed", BOMB, r"a:1: not XML, or truncated \(limit on input amplification"),
        ("pubmed", OUTSIDE, r"a:2: not XML, or truncated \(undefined entity"),
        ("pubmed", pubmed(("", "a")), r"a: an article has no PMID"),
        ("pubmed", pubmed(deleted=("1",)), "the input has no articles"),
        ("pubmed", pubmed(("1", "")), r"none of 1 articles has an abstract of at least 1 words: lower --min-words"),
        ("s2orc", '\n{"paper_id": "1"', r"a:2: not JSON \(Expecting"),
        ("s2orc", PAPER % ('"1"', "null", "[]"), r"a:1: expected an object with corpusid or paper_id, and abstract"),
        ("s2orc", '{"abstract": "A"}', r"a:1: expected an object"),
        ("bioasq", '{"articles":[\n' + ARTICLES[0] + ",\n", r"a: truncated, it does not end with \]\}; download"),
        ("bioasq", '{"articles":[\n{"pmid": "1"}\n]}', r"a:2: expected an object with pmid, and abstractT"),
        ("bioasq", ARTICLES[0] + "," + ARTICLES[1], r"a:1: not JSON \(Extra data"),
    ],
)
def test_refuses(tmp_path: Path, source: str, text: str, message: str) -> None:
    with pytest.raises(CaiError, match=message):
        convert(source, [write(tmp_path / "a", text)], tmp_path / "out", 1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("damage", ["cut", "flipped", "plain"])
def test_a_damaged_gzip_file_is_refused(tmp_path: Path, damage: str) -> None:
    data = gzip.compress(pubmed(*((str(i), f"text {i * i}") for i in range(1, 200))).encode())
    middle = len(data) // 2
    flipped = data[:middle] + bytes(255 - byte for byte in data[middle : middle + 8]) + data[middle + 8 :]
    file = tmp_path / "a.xml.gz"
    file.write_bytes({"cut": data[:middle], "flipped": flipped, "plain": b"<PubmedArticleSet/>"}[damage])
    with pytest.raises(CaiError, match=r"a\.xml\.gz.*(truncated|not XML)"):
        convert("pubmed", [file], tmp_path / "out", 1)
    assert not (tmp_path / "out").exists()


QUESTION = '{"questions": [{"id": "1", "body": "b", "documents": %s}]}'


@pytest.mark.parametrize(
    "text, message",
    [
        ('{"questions":\n[', r"q\.json:2: not JSON"),
        ("[]", r'q\.json: expected \{"questions": \['),
        ('{"questions": [{"id": "1", "body": "b"}]}', r"q\.json: expected"),
        (QUESTION % '["http://a/PMC1"]', r"q\.json: question 1: .* no PMID"),
        (QUESTION % '["http://a/9"]', "the articles include none of the questions' documents"),
    ],
)
def test_refuses_questions(tmp_path: Path, text: str, message: str) -> None:
    articles = write(tmp_path / "a.json", "\n".join(ARTICLES))
    with pytest.raises(CaiError, match=message):
        convert("bioasq", [articles], tmp_path / "out", 0, [write(tmp_path / "q.json", text)])
    assert not (tmp_path / "out").exists()


def test_a_damaged_corpus_is_no_collection(tmp_path: Path) -> None:
    (tmp_path / "in.xml").write_text(pubmed(("1", "one"), ("2", "two")))
    output = convert("pubmed", [tmp_path / "in.xml"], tmp_path / "out", 0)
    (output / "queries.jsonl").write_text('{"_id": "q", "text": "one"}\n')  # may be put there
    assert len(list(BeirFolder(output, "out").documents())) == 2
    lines = (output / "corpus.jsonl").read_text().splitlines(keepends=True)
    (output / "corpus.jsonl").write_text(lines[0])
    remedy = r"or delete .*manifest\.json if it was changed on purpose"
    with pytest.raises(CaiError, match=rf"out is damaged \(corpus\.jsonl has .* again with .*convert`, {remedy}"):
        BeirFolder(output, "out")
    (output / "manifest.json").unlink()
    assert len(list(BeirFolder(output, "out").documents())) == 1


def test_refuses_files_that_do_not_exist_and_a_folder_of_other_files(tmp_path: Path) -> None:
    file = write(tmp_path / "a.json", ARTICLES[0])
    with pytest.raises(CaiError, match="has files that this command has not made"):
        convert("bioasq", [file], tmp_path, 1)
    with pytest.raises(CaiError, match=r"no file .*b\.json"):
        convert("bioasq", [file, tmp_path / "b.json"], tmp_path / "out", 1)
    with pytest.raises(CaiError, match="is a folder: give its files"):
        convert("bioasq", [tmp_path], tmp_path / "out", 1)
    with pytest.raises(CaiError, match=r"no file .*q\.json"):
        convert("bioasq", [file], tmp_path / "out", 1, [tmp_path / "q.json"])
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
