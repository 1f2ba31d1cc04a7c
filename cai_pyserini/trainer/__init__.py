"""Train checkpoints, each with an encoder.yaml, from texts and training files.

texts ──► vocabulary ──► pretrain ──► splade or dense ──► checkpoint
                                           ▲
generate, mine, msmarco, score ──► training file

pairs.py implements `splade` and `dense`, files.py `mine`, `msmarco` and `score`; training.py runs transformers.Trainer.
"""
