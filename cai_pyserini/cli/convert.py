from cai_pyserini.core.flags import ENCODER_TEXT, OUTPUT_FOLDER
from cai_pyserini.core.settings import AnyPath, Argv, Settings, flag, parse

DESCRIPTION = "Convert articles and questions to BEIR's format, or the pickles of a checkpoint to safetensors."
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


class CheckpointSettings(Settings):
    """Convert a checkpoint with pickled weights (pytorch_model.bin) to safetensors.

    A pickle can run code when it is read; no other command reads one. This command reads it in a separate process with
    bounded memory, and refuses a file with anything but tensors. The pickles of a Hugging Face model id are downloaded.
    The output has all files that the model is loaded from: use it as --encoder, or as `checkpoint` in an encoder's
    YAML.
    """

    example = "cai-pyserini convert checkpoint naver/efficient-splade-V-large-doc --output models/splade-v-doc"
    checkpoint: str = flag(help=ENCODER_TEXT, positional=True)
    output: AnyPath = OUTPUT_FOLDER


COMMANDS: dict[str, type[Settings]] = {
    "pubmed": PubmedSettings,
    "s2orc": S2orcSettings,
    "bioasq": BioasqSettings,
    "checkpoint": CheckpointSettings,
}


def main(argv: Argv = None) -> None:
    settings = parse(COMMANDS, argv, "cai-pyserini convert", DESCRIPTION)
    if isinstance(settings, CheckpointSettings):
        _convert_checkpoint(settings)
    else:
        _convert_articles(settings)
    print(f"\n{settings.output}")


def _convert_checkpoint(settings: CheckpointSettings) -> None:
    from cai_pyserini.core import artifact
    from cai_pyserini.models.pickled import convert_checkpoint

    convert_checkpoint(settings.checkpoint, settings.output)
    print("converted from pickles to safetensors:")
    for name, counts in artifact.require(settings.output, "convert checkpoint").stats["written"].items():
        print(f"{name}: {counts['tensors']:,} tensors, {counts['bytes'] / 1e6:,.1f} MB")


def _convert_articles(settings: ConvertSettings) -> None:
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
