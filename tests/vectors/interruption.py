"""Ctrl-C while a stage writes shards."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cai_pyserini.vectors import encode, shards


@contextmanager
def interrupted_after(writes: int) -> Iterator[None]:
    """Simulate Ctrl-C after this number of shards is written."""
    written, write_shard = 0, shards.write_shard

    def write(*args: Any, **options: Any) -> shards.ShardStats:
        nonlocal written
        stats = write_shard(*args, **options)
        written += 1
        if written == writes:
            raise KeyboardInterrupt
        return stats

    with pytest.MonkeyPatch.context() as patch:
        for module in (shards, encode):
            patch.setattr(module, "write_shard", write)
        yield
