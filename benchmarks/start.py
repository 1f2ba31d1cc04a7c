"""Processor time of cold starts: of a process and its children, from the start to the end.

"two documents" indexes two texts for BM25 in Python, and searches them; the others search a finished run, in Python and
by `cai-pyserini search`, or print the help. Every repeat is a process of its own. The archive of Java's classes (see
indexes/class_archive.py) has been made before, unless PYSERINI_CACHE is a folder that cannot be written to.
"""

import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import harness

TWO = 'import cai_pyserini as cai; assert cai.index(["short fingers", "text"], system="bm25").search("fingers")'
RUN = "import sys, cai_pyserini as cai; assert cai.open(sys.argv[1])[sys.argv[2]].search('short fingers')"
COMMAND = [sys.executable, "-m", "cai_pyserini"]


def main() -> None:
    parser = harness.parser_of(__doc__)
