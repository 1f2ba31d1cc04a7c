"""Whole adaptations to a collection, made of the steps of the trainer."""
