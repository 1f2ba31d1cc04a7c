"""A teacher's margins for a training file: what Margin-MSE distils (Hofstätter et al. 2020).

margin = S_CE(query, positive) - S_CE(query, negative),   S_CE the score of a cross-encoder
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from cai_pyserini.core import artifact, jsonl
from cai_pyserini.core.artifact import file_digest
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.terminal import progress
from cai_pyserini.models.checkpoint import checkpoint_digest, checkpoint_folder
from cai_pyserini.models.cross_encoder import CrossEncoder
from cai_pyserini.trainer.batches import in_batches
from cai_pyserini.trainer.examples import Example, count, read
from cai_pyserini.trainer.settings import ScoreSettings

STAGE = "trainer score"
KEPT = 256  # lines per file of the interim results, which an interruption costs at most


def recipe(settings: ScoreSettings) -> artifact.Recipe:
    """What margins depend on."""
    if not settings.data.is_file():
        raise CaiError(f"no file {settings.data}")
    checkpoint = checkpoint_digest(checkpoint_folder(load_encoder(settings.cross_encoder)))
    return artifact.recipe(STAGE, {"data": file_digest(settings.data), "checkpoint": checkpoint})


def score(settings: ScoreSettings) -> Path:
    """Write the training file with margins. Interim results are kept in `.<output>.batches`."""
    made_by = recipe(settings)
    batches = settings.output.with_name(f".{settings.output.name}.batches")

    def write(path: Path) -> artifact.Stats:
        count(settings.data, margins=False, negatives=1)  # before hours of scoring
        model: CrossEncoder | None = None
        bar = progress(range(0), None, "score", "pair")

        def records(number: int, lines: Sequence[Example]) -> Iterator[Example]:
            nonlocal model
            model = model or CrossEncoder(checkpoint_folder(load_encoder(settings.cross_encoder)), settings.device)
            pairs = [(line["query"], text) for line in lines for text in (line["positive"], *line["negatives"])]
            scores = iter(model.score([query for query, _ in pairs], [text for _, text in pairs], bar.update).tolist())
            for line in lines:
                positive = next(scores)
                yield line | {"margins": [round(positive - next(scores), 4) for _ in line["negatives"]]}

        with bar:
            lines = (line for _, line in read(settings.data))
            return {"lines": jsonl.write(path, in_batches(lines, KEPT, batches, made_by, records))}

    artifact.make(settings.output, made_by, write, folder=False)
    artifact.remove(batches)
    return settings.output
