"""Vocabulary expansion, the first half of AdaLM (Yao et al. 2021; Iida & Okazaki 2022, Algorithm 1).

In step i a WordPiece vocabulary of |V_0| + i * increment entries is trained on the corpus, the corpus is tokenized with
it, and its most frequent tokens that are not in V_0 are added to V_0, until there are i * increment. Tokens without
letters are left out. The last step is the first that cannot fill its increment, or an earlier one by the entropy of the
corpus under the expanded vocabulary (Appendix F)

    I(C) = sum over the corpus of log p(x),    p(x) = relative frequency of token x,

with --stop relative when I_i - I_{i-1} < epsilon * |I_{i-1}|, with --stop first when it is < epsilon * (I_1 - I_0).

The corpus is read once, into a table of word counts, on which all steps work. The result is reproducible.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from cai_pyserini.core import artifact, files
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.figures import plot_lines
from cai_pyserini.core.terminal import progress
from cai_pyserini.models.folder import model_folder
from cai_pyserini.models.splade import load_masked_lm
from cai_pyserini.models.tokenizer import Tokenizer, load_tokenizer
from cai_pyserini.trainer import wordpiece
from cai_pyserini.trainer.settings import VocabularySettings, write_encoder
from cai_pyserini.trainer.texts import corpus_recipe, texts
from cai_pyserini.trainer.training import require_ids

STAGE = "trainer vocabulary"


class Step(NamedTuple):
    vocabulary: int  # entries of the expanded vocabulary
    added: int  # of them, those that are not in V_0
    tokens: int  # of the corpus
    entropy: float  # of the corpus, in nats


def expand(
    counts: Counter[str], base: Mapping[str, int], special: int, unknown: str, settings: VocabularySettings
) -> tuple[list[str], list[Step]]:
    """The tokens to add to `base`, the most frequent first, and the steps.

    `counts` are those of the corpus's words; `special` is the number of special tokens of a vocabulary, which are not
    word pieces.
    """
    words = sorted(counts)
    occurrences = np.array([counts[word] for word in words])
    steps = [Step(len(base), 0, *_tokens_and_entropy(wordpiece.frequencies(words, occurrences, base, unknown)))]
    trained: list[str] = []
    asked = 0
    added: list[str] = []
    while not settings.max_steps or len(steps) <= settings.max_steps:
        size = len(steps) * settings.increment
        wanted = len(base) + size - special
        if wanted > asked:
            asked = 2 * wanted  # also for the next steps: a smaller vocabulary is the beginning of a larger one
            trained = wordpiece.train(counts, asked)
        pieces = trained[:wanted]
        ids = {unknown: 0} | {piece: i for i, piece in enumerate(pieces, 1)}
        frequencies = wordpiece.frequencies(words, occurrences, ids, unknown)
        new = [i for i in np.flatnonzero(frequencies) if i and pieces[i - 1] not in base and is_word(pieces[i - 1])]
        new = sorted(new, key=lambda i: (-frequencies[i], i))[:size]
        grown = len(new) - len(added)
        added = [pieces[i - 1] for i in new]
        expanded = dict(base) | {token: i for i, token in enumerate(added, max(base.values()) + 1)}
        measured = _tokens_and_entropy(wordpiece.frequencies(words, occurrences, expanded, unknown))
        steps.append(Step(len(expanded), len(added), *measured))
        entropies = [step.entropy for step in steps]
        limit = {"exhausted": 0.0, "relative": abs(entropies[-2]), "first": abs(entropies[1] - entropies[0])}
        if grown < settings.increment or entropies[-1] - entropies[-2] < settings.epsilon * limit[settings.stop]:
            break
    return added, steps


def is_word(piece: str) -> bool:
    """Whether a piece has letters: numbers and punctuation are not added."""
    return any(character.isalpha() for character in piece)


def _tokens_and_entropy(frequencies: np.ndarray) -> tuple[int, float]:
    """The number of tokens, and the sum of their log probabilities, in nats."""
    met = frequencies[frequencies > 0]
    return int(met.sum()), float((met * np.log(met / met.sum())).sum())


def expand_checkpoint(settings: VocabularySettings) -> Path:
    """Write the expanded checkpoint: tokenizer, model with the new embeddings, encoder.yaml and report.json."""
    encoder = load_encoder(settings.base)

    def write(folder: Path) -> artifact.Stats:
        checkpoint = model_folder(encoder)
        model, _ = load_masked_lm(checkpoint)
        tokenizer = load_tokenizer(checkpoint)
        backend = Tokenizer(checkpoint).backend
        base, unknown = wordpiece.vocabulary_of(backend, str(checkpoint))
        before = [table.detach().clone() for table in _tables(model)]
        _require_a_row_each(checkpoint, base, len(before[0]))
        corpus = progress(texts(settings.corpus, settings.min_words), None, "count words", "text")
        counts = wordpiece.count_words(corpus, backend)
        added, steps = expand(counts, base, len(tokenizer.all_special_tokens), unknown, settings)
        if not added:
            raise CaiError(
                f"nothing to add: the vocabulary of {settings.base} has all words of {', '.join(settings.corpus)}"
            )
        expanded = base | {token: id for id, token in enumerate(added, max(base.values()) + 1)}
        tokenizer.save_pretrained(folder)
        _write_vocabulary(folder / "tokenizer.json", expanded)
        _grow(model, wordpiece.split(added, base, unknown), max(expanded.values()) + 1)
        model.save_pretrained(folder)
        _require_same(folder, expanded, before, sorted(base.values()))
        write_encoder(encoder, folder)
        report = {"words": len(counts), "steps": [step._asdict() for step in steps], "added": added}
        files.write_text(folder / "report.json", files.json_text(report, ensure_ascii=False))
        points = [step.vocabulary for step in steps], [step.entropy for step in steps]
        plot_lines(folder / "entropy.png", "entries of the vocabulary", "entropy of the corpus, nats", {"": points})
        return {"added": len(added), "vocabulary": len(expanded), "steps": len(steps) - 1}

    return artifact.make(settings.output, corpus_recipe(STAGE, settings), write)


def _require_a_row_each(checkpoint: Path, ids: Mapping[str, int], rows: int) -> None:
    """Raise CaiError if tokens share an id, or have none of the rows of the embeddings."""
    if len({*ids.values()}) < len(ids):
        raise CaiError(f"{checkpoint}: some tokens share an id, so that their embeddings cannot be told apart")
    if max(ids.values()) >= rows:
        raise CaiError(
            f"{checkpoint}: the tokenizer has ids up to {max(ids.values()):,} but the model only {rows:,} embeddings: "
            "resize_token_embeddings was forgotten"
        )


def _write_vocabulary(path: Path, ids: Mapping[str, int]) -> None:
    """Put all tokens into the vocabulary of a tokenizer.json.

    New ones are word pieces, not "added tokens", so that text is tokenized as if the vocabulary had always had them.
    Those that were added before stay added tokens, but are in the vocabulary, too: a token that is not gets the number
    of entries of the vocabulary as its id when the file is loaded, whatever the file says.
    """
    data = json.loads(path.read_text(encoding="utf-8"))
    data["model"]["vocab"] = dict(sorted(ids.items(), key=lambda item: item[1]))
    files.write_text(path, json.dumps(data, ensure_ascii=False))
    path.with_name("vocab.txt").unlink(missing_ok=True)  # tokenizer.json has it all


def _tables(model: Any) -> list[torch.Tensor]:
    """What a model has a row of for each token: embeddings, and the decoder's weights and bias."""
    decoder = model.get_output_embeddings()
    tables = (model.get_input_embeddings().weight, decoder.weight, decoder.bias)
    return [table for table in tables if table is not None]


def _grow(model: Any, pieces: list[list[int]], size: int) -> None:
    """Append embeddings of new tokens: the mean of their pieces' embeddings; likewise the decoder's bias."""
    model.resize_token_embeddings(size, mean_resizing=False)
    with torch.no_grad():
        for table in {id(table): table for table in _tables(model)}.values():  # tied ones once
            for row, ids in enumerate(pieces, size - len(pieces)):
                table[row] = table[ids].mean(0)


def _require_same(folder: Path, ids: Mapping[str, int], before: list[torch.Tensor], kept: list[int]) -> None:
    """Load the checkpoint again. Raises CaiError for a token with another id, or a row of `kept` that has moved."""
    require_ids(folder, ids)
    after = _tables(load_masked_lm(folder)[0])
    if not all(torch.equal(old[kept], new[kept]) for old, new in zip(before, after, strict=True)):
        raise CaiError("the vocabulary cannot be expanded: its embeddings, loaded again, are not those of the base")
