from cai_pyserini.core import terminal
from cai_pyserini.core.flags import OUTPUT_FOLDER
from cai_pyserini.core.settings import AnyPath, Argv, Settings, flag, parse

DESCRIPTION = "Convert PubMed's baseline, S2ORC's abstracts, or BioASQ's articles and questions to BEIR's format."
MIN_WORDS = "leave out articles whose abstract has fewer words; 0 keeps all articles with a title or an abstract"


class ConvertSettings(Settings):
    """What all sources have in common."""

    input: list[AnyPath] = flag(help="files of articles, gzipped or not; a later article replaces one of the same id")
    output: AnyPath = OUTPUT_FOLDER
    min_words: int = flag(128, MIN_WORDS, ge=0)


class PubmedSettings(ConvertSettings):
    """Convert the XML files of PubMed's baseline, followed by its update files."""

    example = "python -m cai_pyserini.convert pubmed --input baseline/*.xml.gz --output corpora/pubmed"


class S2orcSettings(ConvertSettings):
    """Convert JSONL files: the metadata of S2ORC's 2020 release, or Semantic Scholar's abstracts."""

    example = "python -m cai_pyserini.convert s2orc --input metadata/*.jsonl.gz --output corpora/s2orc"


class BioasqSettings(ConvertSettings):
    """Convert the articles of BioASQ's Task A (allMeSH_*.json), and the questions of its Task B."""

    example = (
        "python -m cai_pyserini.convert bioasq --input allMeSH_2020.json --questions 8B*_golden.json "
        "--output data/bioasq"
    )
    questions: list[AnyPath] = flag([], "*_golden.json of Task B; without them, the output has no queries")
    min_words: int = flag(0, MIN_WORDS, ge=0)


COMMANDS = {"pubmed": PubmedSettings, "s2orc": S2orcSettings, "bioasq": BioasqSettings}


def main(argv: Argv = None) -> None:
    given = parse(COMMANDS, argv, "python -m cai_pyserini.convert", DESCRIPTION)
    source = next(name for name, kind in COMMANDS.items() if type(given) is kind)
    questions = given.questions if isinstance(given, BioasqSettings) else []

    from cai_pyserini.convert.convert import convert
    from cai_pyserini.core import artifact
    from cai_pyserini.core.tables import aligned

    convert(source, given.input, given.output, given.min_words, questions)
    stats = artifact.require(given.output, "convert").stats
    labels = {
        "read": "read",
        "replaced": "replaced or deleted later",
        "without_abstract": "without an abstract" if given.min_words else "without a title and an abstract",
        **({"short": f"fewer than {given.min_words} words"} if given.min_words else {}),
        "kept": "kept",
    }
    print(aligned([["articles", "number"], *([label, f"{stats['articles'][key]:,}"] for key, label in labels.items())]))
    if counts := stats.get("questions"):
        print(
            f"\n{counts['kept']:,} of {counts['read']:,} questions with {counts['judgments']:,} judgments; left out: "
            f"{counts['judgments_left_out']:,} judgments of articles that are not in the corpus"
        )
    print(f"\n{given.output}")


if __name__ == "__main__":
    terminal.run(main)
