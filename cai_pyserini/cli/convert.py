from typing import ClassVar

from cai_pyserini.core.flags import OUTPUT_FOLDER
from cai_pyserini.core.settings import AnyPath, Command, Group, Main, flag

MIN_WORDS = "leave out articles whose abstract has fewer words; 0 keeps every article with a title or an abstract"


class ConvertArticles(Command):
    source: ClassVar[str]  # a key of READERS
    input: list[AnyPath] = flag(help="files of articles, gzipped or not; an article's last version replaces the others")
    output: AnyPath = OUTPUT_FOLDER
    min_words: int = flag(128, MIN_WORDS, ge=0)

    def execute(self) -> None:
        from cai_pyserini.collections.convert import convert
        from cai_pyserini.core import artifact
        from cai_pyserini.core.tables import aligned

        convert(self.source, self.input, self.output, self.min_words, getattr(self, "questions", []))
        stats = artifact.require(self.output, "convert").stats
        labels = {
            "read": "read",
            "replaced": "replaced or deleted later",
            "without_abstract": "without an abstract" if self.min_words else "without a title and an abstract",
            **({"short": f"fewer than {self.min_words} words"} if self.min_words else {}),
            "kept": "kept",
        }
        rows = [[label, f"{stats['articles'][key]:,}"] for key, label in labels.items()]
        print(aligned([["articles", "number"], *rows]))
        if counts := stats.get("questions"):
            print(
                f"\n{counts['kept']:,} of {counts['read']:,} questions with {counts['judgments']:,} judgments; "
                f"left out: {counts['judgments_left_out']:,} judgments of articles that are not in the corpus"
            )
        print(f"\n{self.output}")


class Pubmed(ConvertArticles):
    """Convert the XML files of PubMed's baseline, followed by its update files."""

    source = "pubmed"
    example = "cai-pyserini convert pubmed --input baseline/*.xml.gz --output corpora/pubmed"


class S2orc(ConvertArticles):
    """Convert JSONL files: the metadata of S2ORC's 2020 release, or Semantic Scholar's abstracts."""

    source = "s2orc"
    example = "cai-pyserini convert s2orc --input metadata/*.jsonl.gz --output corpora/s2orc"


class Bioasq(ConvertArticles):
    """Convert the articles of BioASQ's Task A (allMeSH_*.json), and the questions of its Task B."""

    source = "bioasq"
    example = "cai-pyserini convert bioasq --input allMeSH_2020.json --questions 8B*_golden.json --output data/bioasq"
    questions: list[AnyPath] = flag([], "*_golden.json of Task B; without them, the output has no queries")
    min_words: int = flag(0, MIN_WORDS, ge=0)


main = Main(
    Group(
        "Convert PubMed's baseline, S2ORC's abstracts, or BioASQ's articles and questions to BEIR's format.",
        {"pubmed": Pubmed, "s2orc": S2orc, "bioasq": Bioasq},
    ),
    "convert",
)
