"""What the tests of adaptations share with those of the trainer."""

from tests.trainer.conftest import generator, steady, triples

__all__ = ["generator", "steady", "triples"]
