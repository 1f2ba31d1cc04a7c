"""Projected vectors are those that encoding with the projection makes."""

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from cai_pyserini.collection.beir_folder import BeirFolder
from cai_pyserini.core import artifact
from cai_pyserini.core.config import EncoderConfig
from cai_pyserini.encode.encode import encode, project_vectors
from cai_pyserini.encode.encoder import Encoder
from cai_pyserini.vectors.shards import Vectors


def test_projected_vectors_are_as_if_encoded(tiny: Path, checkpoint: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    save_file({"weight": torch.eye(128) + 0.1 * torch.randn(128, 128)}, tmp_path / "p.safetensors")
    config = EncoderConfig(name="dense", checkpoint=str(checkpoint), kind="dense")
    plain = Encoder(config, "cpu", "float32")
    encoder = Encoder(config.replace(projection=str(tmp_path / "p.safetensors")), "cpu", "float32")
    collection = BeirFolder(tiny, "tiny")
    vectors = Vectors(encode(collection, plain, tmp_path / "plain"))
    projected = Vectors(project_vectors(vectors, encoder, tmp_path / "projected"))
    encoded = Vectors(encode(collection, encoder, tmp_path / "encoded"))
    for one, other in zip(projected, encoded, strict=True):
        assert one.ids == other.ids
        np.testing.assert_allclose(one.vectors, other.vectors, atol=1e-5)
    assert abs(next(iter(vectors)).vectors - next(iter(projected)).vectors).max() > 0.01
    assert projected.manifest.recipe == encoded.manifest.recipe
    before = projected.manifest
    assert artifact.read_manifest(encode(collection, encoder, tmp_path / "projected")) == before  # nothing to be done
    (same,) = Vectors(project_vectors(vectors, plain, tmp_path / "same"))
    (unchanged,) = vectors
    assert (same.vectors == unchanged.vectors).all()
