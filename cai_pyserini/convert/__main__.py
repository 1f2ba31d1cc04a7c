from cai_pyserini.core import terminal
from cai_pyserini.core.flags import ENCODER_TEXT, OUTPUT_FOLDER
from cai_pyserini.core.settings import AnyPath, Argv, Settings, flag, parse

DESCRIPTION = (
    "Convert PubMed's baseline, S2ORC's abstracts, or BioASQ's articles and questions to BEIR's format, or the pickles "
    "of a checkpoint to safetensors."
)
MIN_WORDS = "leave out articles whose abstract has fewer words; 0 keeps all articles with a title or an abstract"


class ConvertSettings(Settings):
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


class CheckpointSettings(Settings):
    """Convert a checkpoint whose weights are pickles (pytorch_model.bin) to safetensors.

    A pickle can run code when it is read; no other command reads one. This one reads it in a process of its own, with
    bounded memory, and takes nothing but tensors: a file with anything else is refused. The pickles of a Hugging Face
    model id are downloaded. The output has all that the model is loaded from: use it as --encoder, or as `checkpoint`
    in an encoder's YAML.
    """

    example = (
        "python -m cai_pyserini.convert checkpoint naver/efficient-splade-V-large-doc --output models/splade-v-doc"
    )
    checkpoint: str = flag(help=ENCODER_TEXT, positional=True)
    output: AnyPath = OUTPUT_FOLDER


COMMANDS: dict[str, type[Settings]] = {
    "pubmed": PubmedSettings,
    "s2orc": S2orcSettings,
    "bioasq": BioasqSettings,
    "checkpoint": CheckpointSettings,
}


def main(argv: Argv = None) -> None:
    given = parse(COMMANDS, argv, "python -m cai_pyserini.convert", DESCRIPTION)
    if isinstance(given, CheckpointSettings):
        _convert_checkpoint(given)
    else:
        _convert_articles(given)
    print(f"\n{given.output}")


def _convert_checkpoint(given: CheckpointSettings) -> None:
    from cai_pyserini.convert.checkpoint import convert_checkpoint
    from cai_pyserini.core import artifact

    convert_checkpoint(given.checkpoint, given.output)
    print("converted from pickles to safetensors:")
    for name, counts in artifact.require(given.output, "convert checkpoint").stats["written"].items():
        print(f"{name}: {counts['tensors']:,} tensors, {counts['bytes'] / 1e6:,.1f} MB")


def _convert_articles(given: ConvertSettings) -> None:
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


if __name__ == "__main__":
    terminal.run(main)
