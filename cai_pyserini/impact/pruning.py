"""Static pruning of impacts, document by document (Lassance et al. 2023).

Small impacts make up most of an index and little of its scores. Those that remain stay as they are.
"""

from scipy.sparse import csr_matrix

from cai_pyserini.core.config import EncoderConfig
from cai_pyserini.vectors.rows import largest, largest_of_mass


def prune(impacts: csr_matrix, config: EncoderConfig) -> csr_matrix:
    """The impacts (documents, vocabulary) that keep_mass and keep_terms leave; of equal ones, the first."""
    if config.keep_mass is not None:
        impacts = largest_of_mass(impacts, config.keep_mass)
    if config.keep_terms is not None:
        impacts = largest(impacts, config.keep_terms)
    return impacts
