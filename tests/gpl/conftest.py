"""What the tests of GPL share with those of the trainer."""

from tests.trainer.conftest import generator

__all__ = ["generator"]
