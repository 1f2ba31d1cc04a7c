"""What the tests of the recipes share with those of the trainer."""

from tests.trainer.conftest import generator, steady, triples

__all__ = ["generator", "steady", "triples"]
