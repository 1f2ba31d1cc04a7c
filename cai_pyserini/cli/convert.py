from cai_pyserini.core.flags import OUTPUT_FOLDER
from cai_pyserini.core.settings import AnyPath, Argv, Settings, flag, parse

DESCRIPTION = "Convert PubMed's baseline, S2ORC's abstracts, or BioASQ's articles and questions to BEIR's format."
MIN_WORDS = "leave out articles whose abstract has fewer words; 0 keeps every article with a title or an abstract"


class ConvertSettings(Settings):
    input: list[AnyPath] = flag(help="files of articles, gzipped or not; an article's last version replaces the others")
    output: AnyPath = OUTPUT_FOLDER
    min_words: int = flag(128, MIN_WORDS, ge=0)


class PubmedSettings(ConvertSettings):
    """Convert the XML files of PubMed's baseline, followed by its update files."""

    example = "cai-pyserini convert pubmed --input baseline/*.xml.gz --output corpora/pubmed"


class S2orcSettings(ConvertSettings):
    """Convert JSONL files: the metadata of S2ORC's 2020 release, or Semantic Scholar's abstracts."""

    example = "cai-pyserini convert s2orc --input metadata/*.jsonl.gz --output corpora/s2orc"


class BioasqSettings(ConvertSettings):
    """Convert the articles of BioASQ's Task A (allMeSH_*.json), and the questions of its Task B."""

    example = "cai-pyserini convert bioasq --input allMeSH_2020.json --questions 8B*_golden.json --output data/bioasq"
    questions: list[AnyPath] = flag([], "*_golden.json of Task B; without them, the output has no queries")
    min_words: int = flag(0, MIN_WORDS, ge=0)


COMMANDS: dict[str, type[ConvertSettings]] = {
    "pubmed": PubmedSettings,
    "s2orc": S2orcSettings,
    "bioasq": BioasqSettings,
}


def main(argv: Argv = None) -> None:
    settings = parse(COMMANDS, argv, "cai-pyserini convert", DESCRIPTION)
    source = next(name for name, kind in COMMANDS.items() if type(settings) is kind)
    questions = settings.questions if isinstance(settings, BioasqSettings) else []

    from cai_pyserini.collections.convert import convert
    from cai_pyserini.core import artifact
    from cai_pyserini.core.tables import aligned

    convert(source, settings.input, settings.output, settings.min_words, questions)
    stats = artifact.require(settings.output, "convert").stats
    labels = {
        "read": "read",
        "replaced": "replaced or deleted later",
        "without_abstract": "without an abstract" if settings.min_words else "without a title and an abstract",
        **({"short": f"fewer than {settings.min_words} words"} if settings.min_words else {}),
        "kept": "kept",
    }
    print(aligned([["articles", "number"], *([label, f"{stats['articles'][key]:,}"] for key, label in labels.items())]))
    if counts := stats.get("questions"):
        print(
            f"\n{counts['kept']:,} of {counts['read']:,} questions with {counts['judgments']:,} judgments; left out: "
            f"{counts['judgments_left_out']:,} judgments of articles that are not in the corpus"
        )
    print(f"\n{settings.output}")
