"""What the tests of adaptations share with those of the trainer."""

from tests.trainer.conftest import triples as triples
