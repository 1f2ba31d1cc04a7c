"""How long encoding takes: the tokens of the texts, divided by the speed of the encoder on this machine.

The speed is measured on some of the texts, and kept in `speeds.json` in Pyserini's cache by encoder, device and
precision, so that it is measured once; an encoding of many texts replaces it by its own.
"""

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cai_pyserini.core import artifact
from cai_pyserini.core.files import cache_home, json_text, write_text
from cai_pyserini.models.device import device_name, resolve_device
from cai_pyserini.models.encoder import EncoderModel, Role

FEW_TOKENS = 20_000  # fewer take seconds, whatever the encoder, and are not worth a measurement
USUAL_SPEED = 5_000.0  # tokens per second, assumed for few tokens
FIRST = 4  # texts encoded first, unmeasured; then twice as many, and so on, until that takes MIN_SECONDS
MIN_SECONDS = 1.0


def encoding_seconds(encoder: EncoderModel, tokens: float, sample: Sequence[str], role: Role = "documents") -> float:
    """About the seconds to encode texts with so many tokens, of which `sample` are some."""
    return tokens / (USUAL_SPEED if tokens < FEW_TOKENS else tokens_per_second(encoder, sample, role))


def count_tokens(encoder: EncoderModel, texts: Sequence[str], role: Role = "documents") -> int:
    """The tokens that an encoder reads of texts, with padding."""
    prompt = encoder.config.query_prompt if role == "queries" else encoder.config.document_prompt
    return encoder.tokenizer.token_ids(texts, encoder.max_length(role), prompt).padded


def tokens_per_second(encoder: EncoderModel, texts: Sequence[str], role: Role = "documents") -> float:
    """The speed of an encoder on this machine, measured on these texts unless it is known."""
    return _read().get(_key(encoder, role)) or remember(encoder, role, measure(encoder, texts, role))


def remember(encoder: EncoderModel, role: Role, speed: float) -> float:
    """Keep the tokens per second of an encoder on this machine, in place of those known before, and return them."""
    speed = round(speed, 1)
    with suppress(OSError):  # without a cache, it is measured again
        _place().parent.mkdir(parents=True, exist_ok=True)
        write_text(_place(), json_text(_read() | {_key(encoder, role): speed}))
    return speed


def _place() -> Path:
    return cache_home() / "speeds.json"


def _key(encoder: EncoderModel, role: Role) -> str:
    return artifact.digest([encoder.identity(role), role, device_name(resolve_device(encoder.device))])


def _read() -> dict[str, float]:
    """The speeds in the cache by key; none if they cannot be read."""
    with suppress(OSError, ValueError, AttributeError):
        speeds = json.loads(_place().read_text(encoding="utf-8"))
        return {key: speed for key, speed in speeds.items() if isinstance(speed, float)}
    return {}


def measure(encoder: EncoderModel, texts: Sequence[str], role: Role) -> float:
    """The tokens per second of encoding more and more texts, until that takes MIN_SECONDS."""
    model, length = encoder.load(role), encoder.max_length(role)
    model.encode(texts[:FIRST], length)
    count = FIRST
    while True:
        count, start = 2 * count, time.perf_counter()
        model.encode(texts[:count], length)
        if (seconds := time.perf_counter() - start) >= MIN_SECONDS or count >= len(texts):
            return count_tokens(encoder, texts[:count], role) / seconds
