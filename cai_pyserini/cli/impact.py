from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.flags import OR_URL, OUTPUT_OR_URL, THREADS, VECTORS
from cai_pyserini.core.settings import AnyPath, Argv, PathOrUrl, Settings, flag, parse

ENCODER_SETTINGS = {"idf", "bits", "range", "keep_mass"}  # flags that override them


class ImpactSettings(Settings):
    """Weight raw vectors with IDF and quantize them to integer impacts, as JSON vectors for Lucene."""

    example = "cai-pyserini stage impact --vectors vectors --idf idf --encoder splade-tiny --output impacts"
    vectors: PathOrUrl = VECTORS
    encoder: str = flag(help="encoder that the vectors were made with")
    output: PathOrUrl = OUTPUT_OR_URL
    idf: str | None = flag(None, f"folder written by the idf stage, {OR_URL} (default: the encoder's, if it has one)")
    words: AnyPath | None = flag(None, "folder written by the words stage, for a joint index of SPLADE and BM25")
    alpha: float | None = flag(None, "with --words: weight of BM25 (default: by the spread of its scores)", gt=0)
    expansion: AnyPath | None = flag(None, "with --words: folder written by the expand stage")
    k1: float = flag(0.9, "with --words: k1 of BM25", ge=0)
    b: float = flag(0.4, "with --words: b of BM25", ge=0, le=1)
    keep_mass: float | None = flag(None, "keep a document's largest impacts, up to this share of their sum", gt=0, le=1)
    bits: int | None = flag(None, "bits per impact (default: the encoder's, usually 10)", ge=1, le=16)
    range: float | None = flag(None, "weight of the largest impact (default: the encoder's, or the largest)", ge=1e-6)
    threads: int = THREADS


def main(argv: Argv = None) -> None:
    settings = parse(ImpactSettings, argv, "cai-pyserini stage impact")

    from cai_pyserini.core import artifact
    from cai_pyserini.core.config import load_encoder
    from cai_pyserini.impacts.bm25 import Bm25
    from cai_pyserini.impacts.quantization import loss_text
    from cai_pyserini.impacts.weighting import write_impacts
    from cai_pyserini.models.folder import with_folder_settings
    from cai_pyserini.vectors.shards import Vectors

    for name in ("alpha", "expansion"):
        if getattr(settings, name) and not settings.words:
            raise CaiError(f"--{name} has no effect without --words")
    changes = settings.model_dump(include=ENCODER_SETTINGS, exclude_none=True)
    parameters = settings.k1, settings.b, settings.alpha, settings.expansion
    bm25 = Bm25(settings.words, *parameters) if settings.words else None
    config = with_folder_settings(load_encoder(settings.encoder)).replace(**changes)
    if settings.idf and config.idf_power == 0:
        remedy = "set `idf_power: 1` in a YAML file of the encoder"
        raise CaiError(f"--idf {settings.idf} has no effect, because {config.name} has idf_power 0: {remedy}")
    write_impacts(Vectors(settings.vectors), config, settings.output, bm25, threads=settings.threads)
    stats = artifact.require(settings.output, "impact").stats
    print(
        f"{settings.output}: {stats['nonzeros'] / stats['vectors']:.1f} impacts per document, "
        f"scale {stats['document_scale']:.3f}; quantization: {loss_text(stats['loss'])}"
    )
    if stats["alpha"]:
        alphas = ", ".join(f"{alpha:.3g} ({kind} queries)" for kind, alpha in stats["alpha"].items())
        print(f"alpha, the weight of BM25: {alphas}")
