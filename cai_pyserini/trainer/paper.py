"""The paper's method (Iida & Okazaki 2022), from a plain language model and a training file of MS MARCO (`--data`):
vocabulary expansion, pretraining on the collection, SPLADE training with Margin-MSE, and the collection's IDF.
"""

from functools import partial
from pathlib import Path

from transformers import AutoTokenizer

from cai_pyserini.collections.readers import load_collection
from cai_pyserini.core import artifact
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.steps import Step
from cai_pyserini.impacts.document_frequencies import compute
from cai_pyserini.models.checkpoint import checkpoint_digest, require_positions
from cai_pyserini.models.encoder import Encoder
from cai_pyserini.models.folder import model_folder
from cai_pyserini.models.idf import idf_digest
from cai_pyserini.trainer import training
from cai_pyserini.trainer.adapt_settings import AdaptSettings
from cai_pyserini.trainer.examples import count
from cai_pyserini.trainer.pairs import base_encoder, train
from cai_pyserini.trainer.pretrain import pretrain
from cai_pyserini.trainer.settings import (
    PretrainSettings,
    SpladeSettings,
    VocabularySettings,
    inherited,
    load_step,
    recorded,
    write_encoder,
)
from cai_pyserini.trainer.vocabulary import expand_checkpoint

STAGE = "adapt"


def steps(settings: AdaptSettings, data: Path, folder: Path) -> list[Step]:
    """The steps, in order, which write their results to a folder; only the last one if it is up to date. Raises
    CaiError for settings that a step refuses."""
    base, collection = load_encoder(settings.base), load_collection(settings.collection)
    corpus, common = {"corpus": [settings.collection]}, {"device": settings.device, "seed": settings.seed}
    fixed = corpus | {"base": settings.base, "output": folder / "vocabulary"}
    expanded = load_step(VocabularySettings, settings.vocabulary, fixed)
    fixed = corpus | common | {"base": str(expanded.output), "output": folder / "pretrained"}
    pretrained = load_step(PretrainSettings, settings.pretrain, fixed)
    fixed = common | {"data": data, "base": str(pretrained.output), "output": folder / "splade"}
    splade = load_step(SpladeSettings, settings.splade, fixed)

    Encoder(base, settings.device).require_loadable("documents", "queries")
    base_encoder(splade.replace(base=settings.base))  # its own base may not exist yet
    require_positions(model_folder(base), {"max_length of pretraining": pretrained.max_length})
    inputs = {
        "documents": collection.fingerprint("documents"),
        "checkpoint": checkpoint_digest(model_folder(base)),
        "encoder": inherited(base),
        "data": artifact.file_digest(data),
        "idf": idf_digest(splade.idf),
    }
    trained = {"vocabulary": expanded, "pretrain": pretrained, "splade": splade}
    settings_of_steps = {name: recorded(step, "corpus", "data", "base", "idf") for name, step in trained.items()}
    recipe = artifact.recipe(STAGE, inputs, **settings_of_steps)

    def write(output: Path) -> artifact.Stats:
        training.load_model(splade.output).save_pretrained(output)
        training.save_tokenizer(AutoTokenizer.from_pretrained(str(splade.output), trust_remote_code=False), output)
        encoder = load_encoder(str(splade.output))
        compute(collection, encoder.replace(checkpoint=str(output)), output / "idf")
        write_encoder(encoder, output, output / "idf")
        return {"weight": 1.0, "projection": 0.0, "decision": []}

    last = partial(artifact.make, settings.output, recipe, write)
    if artifact.is_up_to_date(settings.output, recipe):
        return [Step("adapt", settings.output, last)]
    artifact.require_writable(settings.output)
    count(data, splade.loss == "margin-mse", splade.negatives)  # before days of work
    return [
        Step("adapt: vocabulary", expanded.output, partial(expand_checkpoint, expanded)),
        Step("adapt: pretraining", pretrained.output, partial(pretrain, pretrained), (expanded.output,)),
        Step("adapt: splade", splade.output, partial(train, splade), (pretrained.output,)),
        Step("adapt", settings.output, last, (splade.output,)),
    ]
