from cai_pyserini.core.config import BM25, Bm25Parameters
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.flags import OR_URL, OUTPUT_OR_URL, THREADS, VECTORS
from cai_pyserini.core.settings import AnyPath, Argv, PathOrUrl, Settings, flag, parse

REQUIRES = {"alpha": "words", "expansion": "words", "documents_only": "expansion"}


class ImpactSettings(Settings):
    """Weight raw vectors with IDF and quantize them to integer impacts, as JSON vectors for Lucene."""

    example = "cai-pyserini stage impact --vectors vectors --idf idf --encoder splade-tiny --output impacts"
    vectors: PathOrUrl = VECTORS
    encoder: str = flag(help="encoder that the vectors were made with")
    output: PathOrUrl = OUTPUT_OR_URL
    idf: str | None = flag(
        None, f"folder written by the idf stage, {OR_URL} (default: the encoder's; if it has none, no weighting)"
    )
    idf_power: float | None = flag(
        None, "exponent of the IDF weights; 0: no weighting (default: the encoder's, usually 1)", ge=0
    )
    words: AnyPath | None = flag(
        None, "folder written by the words stage; adds BM25, for a joint index of SPLADE and BM25"
    )
    alpha: float | None = flag(
        None,
        "with --words: weight of BM25 beside SPLADE (default: estimated, so that both have the same spread of scores)",
        gt=0,
    )
    expansion: AnyPath | None = flag(
        None,
        "with --words: folder written by the expand stage; adds associated words and neighbours' words",
    )
    documents_only: bool = flag(False, "with --expansion: add only neighbours' words")
    k1: float = flag(BM25.k1, "with --words: k1 of BM25", ge=0)
    b: float = flag(BM25.b, "with --words: b of BM25", ge=0, le=1)
    keep_terms: int | None = flag(
        None,
        "keep only this many SPLADE impacts per document, the largest; 0: none, with --words for BM25 alone (default: "
        "the encoder's)",
        ge=0,
    )
    keep_mass: float | None = flag(
        None,
        "keep only the largest SPLADE impacts of a document that make up this fraction of their sum (default: the "
        "encoder's)",
        gt=0,
        le=1,
    )
    bits: int | None = flag(None, "bits per impact (default: the encoder's, usually 10)", ge=1, le=16)
    range: float | None = flag(
        None,
        "weight that maps to the largest impact; larger weights are clipped (default: the encoder's, or else the "
        "collection's largest weight)",
        ge=1e-6,
    )
    threads: int = THREADS


def main(argv: Argv = None) -> None:
    settings = parse(ImpactSettings, argv, "cai-pyserini stage impact")

    from cai_pyserini.core import artifact
    from cai_pyserini.core.config import EncoderConfig, load_encoder
    from cai_pyserini.models.folder import with_folder_settings
    from cai_pyserini.vectors.bm25 import Bm25
    from cai_pyserini.vectors.quantization import loss_text
    from cai_pyserini.vectors.shards import Vectors
    from cai_pyserini.vectors.weighting import write_impacts

    for name, other in REQUIRES.items():
        if getattr(settings, name) and not getattr(settings, other):
            raise CaiError(f"--{name.replace('_', '-')} has no effect without --{other}")
    overrides = ImpactSettings.model_fields.keys() & EncoderConfig.model_fields.keys()
    changes = settings.model_dump(include=overrides, exclude_none=True)
    bm25 = None
    if settings.words:
        parameters = Bm25Parameters(settings.k1, settings.b)
        bm25 = Bm25(settings.words, parameters, settings.alpha, settings.expansion, settings.documents_only)
    config = with_folder_settings(load_encoder(settings.encoder)).replace(**changes)
    if settings.idf and settings.idf_power is None and config.idf_power == 0:
        raise CaiError(f"--idf {settings.idf} has no effect, because {config.name} has idf_power 0: give --idf-power 1")
    write_impacts(Vectors(settings.vectors), config, settings.output, bm25, threads=settings.threads)
    stats = artifact.require(settings.output, "impact").stats
    print(
        f"{settings.output}: {stats['nonzeros'] / stats['vectors']:.1f} impacts per document, "
        f"scale {stats['document_scale']:.3f}; quantization: {loss_text(stats['loss'])}"
    )
    if stats["alpha"]:
        alphas = ", ".join(f"{alpha:.3g} ({kind} queries)" for kind, alpha in stats["alpha"].items())
        print(f"alpha, the weight of BM25: {alphas}")
