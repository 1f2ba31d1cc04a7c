"""The compact trainer: from a corpus to a checkpoint that the rest of the package can use.

corpus ─► vocabulary ─► pretrain ─► splade ─► a checkpoint with its encoder.yaml; adapt does all of it.
"""
