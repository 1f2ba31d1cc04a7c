"""Shared by the tests of GPL and of the trainer."""

from tests.trainer.conftest import generator

__all__ = ["generator"]
