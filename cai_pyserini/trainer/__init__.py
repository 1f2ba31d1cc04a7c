"""Training: texts and training files -> checkpoints, each with an encoder.yaml.

texts ──► vocabulary ──► pretrain ──► splade or dense ──► checkpoint
                                           ▲
generate, mine, msmarco, score ──► training file
"""
