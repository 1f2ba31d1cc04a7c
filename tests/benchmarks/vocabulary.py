"""Claim: expanding the vocabulary from one table of word counts is faster than Algorithm 1 done literally, and gives
the same tokens in the same order.

Literal: in every step the tokenizers library trains a WordPiece vocabulary on the corpus and tokenizes the corpus with
it, the tokens are counted and sorted, and for the entropy the corpus is tokenized with the expanded vocabulary. The
library's trainer is told the order of the characters, without which two runs of it differ. Both take the same steps,
each in a process of its own, without imports and loading the tokenizer.
"""

import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import harness


def ours(corpus: str, encoder: str, increment: int) -> harness.Result:
    """Count words, then all steps."""
    tokenizer, base, unknown = load(encoder)
    from cai_pyserini.trainer import wordpiece
    from cai_pyserini.trainer.settings import VocabularySettings
    from cai_pyserini.trainer.texts import texts
    from cai_pyserini.trainer.vocabulary import expand

    start = time.perf_counter()
    counts = wordpiece.count_words(texts([corpus]), tokenizer.backend_tokenizer)
    settings = VocabularySettings(corpus=[corpus], base=encoder, output=Path(), increment=increment)
    added, steps = expand(counts, base, len(tokenizer.all_special_tokens), unknown, settings)
    return {"seconds": time.perf_counter() - start, "added": added, "steps": len(steps) - 1}


def literal(corpus: str, encoder: str, increment: int) -> harness.Result:
    """Every step on the corpus."""
    tokenizer, base, unknown = load(encoder)
    from tokenizers import Tokenizer, models, trainers

    from cai_pyserini.trainer import wordpiece
    from cai_pyserini.trainer.texts import texts

    backend = tokenizer.backend_tokenizer
    special = tokenizer.all_special_tokens
    counts = wordpiece.count_words(texts([corpus]), backend)  # for the order of characters: not timed
    continuing = sorted({f"##{character}" for word in counts for character in word[1:]})

    def count(vocabulary: dict[str, int]) -> Counter[str]:
        tokenized = Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
        tokenized.normalizer, tokenized.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
        return Counter(token for text in texts([corpus]) for token in tokenized.encode(text).tokens)

    start = time.perf_counter()
    added: list[str] = []
    count(base)
    steps = 0
    while True:
        steps += 1
        trained = Tokenizer(models.WordPiece(unk_token=unknown))
        trained.normalizer, trained.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
        trainer = trainers.WordPieceTrainer(
            vocab_size=len(base) + steps * increment,
            special_tokens=[*special, *continuing],
            limit_alphabet=1 << 20,
            show_progress=False,
        )
        trained.train_from_iterator(texts([corpus]), trainer)
        order = trained.get_vocab()
        found = count(order)
        new = [t for t in found if t not in base and any(character.isalpha() for character in t)]
        new = sorted(new, key=lambda token: (-found[token], order[token]))[: steps * increment]
        grown, added = len(new) - len(added), new
        count(dict(base) | {token: i for i, token in enumerate(added, len(base))})
        if grown < increment:
            return {"seconds": time.perf_counter() - start, "added": added, "steps": steps}


def load(encoder: str) -> Any:
    """The encoder's tokenizer, its vocabulary, and its unknown token."""
    from transformers import AutoTokenizer

    from cai_pyserini.core.config import load_encoder
    from cai_pyserini.models.checkpoint import checkpoint_folder
    from cai_pyserini.trainer import wordpiece

    tokenizer = AutoTokenizer.from_pretrained(str(checkpoint_folder(load_encoder(encoder))))
    return tokenizer, *wordpiece.vocabulary_of(tokenizer.backend_tokenizer, encoder)


def main() -> None:
    parser = harness.parser(__doc__, "vocabulary")
    parser.add_argument("--increment", type=int, default=3000, help="tokens per step")
    args = parser.parse_args()
    settings = {"corpus": args.collection, "encoder": args.encoder, "increment": args.increment}
    peers = {function.__name__: partial(harness.fresh, function, **settings) for function in (ours, literal)}
    results = harness.rounds(args.repeats, peers)
    first = results["ours"][0]
    rows = [(name, f"{harness.middle(r, 'seconds'):.1f}", harness.gigabytes(r)) for name, r in results.items()]
    title = f"Expanding the vocabulary in {first['steps']} steps of {args.increment:,}"
    harness.show(title, ("", "seconds", "peak memory, GB"), rows)
    print(f"Medians of {args.repeats} repetitions, side by side.\n")
    faster = harness.times(results["literal"], results["ours"])
    harness.target("faster than the literal algorithm", f"{faster:.1f} times", faster > 1)
    same = all(result["added"] == first["added"] for group in results.values() for result in group)
    harness.target("the same tokens in the same order", f"{len(first['added']):,} tokens", same)


if __name__ == "__main__":
    main()
