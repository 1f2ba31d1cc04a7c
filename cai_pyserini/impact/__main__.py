from collections.abc import Sequence
from typing import ClassVar

from cai_pyserini.core import terminal
from cai_pyserini.core.flags import OUTPUT_FOLDER
from cai_pyserini.core.settings import AnyPath, Settings, flag, parse


class ImpactSettings(Settings):
    """Weight raw vectors with IDF and quantize them to integer impacts, as JSON vectors for Lucene."""

    example: ClassVar[str] = (
        "python -m cai_pyserini.impact --vectors vectors --idf idf --encoder splade-tiny --output impacts"
    )
    vectors: AnyPath = flag(help="folder written by the encode stage")
    encoder: str = flag(help="encoder that the vectors were made with")
    output: AnyPath = OUTPUT_FOLDER
    idf: str | None = flag(
        None, "folder written by the idf stage (default: the encoder's; if it has none, no weighting)"
    )
    idf_power: float | None = flag(
        None, "exponent of the IDF weights; 0: no weighting (default: the encoder's, usually 1)", ge=0
    )
    bits: int | None = flag(None, "bits per impact (default: the encoder's, usually 10)", ge=1, le=24)
    range: float | None = flag(
        None,
        "weight that gets the largest impact; larger weights are clipped (default: the encoder's, or else the "
        "collection's largest weight)",
        gt=0,
    )


def main(argv: Sequence[str] | None = None) -> None:
    settings = parse(ImpactSettings, argv, "python -m cai_pyserini.impact")

    from cai_pyserini.core import artifact
    from cai_pyserini.core.config import load_encoder
    from cai_pyserini.encode.shards import Vectors
    from cai_pyserini.impact.impacts import write_impacts
    from cai_pyserini.impact.quantization import loss_text

    changes = settings.model_dump(include={"idf", "idf_power", "bits", "range"}, exclude_none=True)
    write_impacts(Vectors(settings.vectors), load_encoder(settings.encoder).replace(**changes), settings.output)
    stats = artifact.require(settings.output, "impact").stats
    print(
        f"{settings.output}: {stats['nonzeros'] / stats['vectors']:.1f} impacts per document, "
        f"scale {stats['document_scale']:.3f}; quantization: {loss_text(stats['loss'])}"
    )


if __name__ == "__main__":
    terminal.run(main)
