"""Updates are tried on the runs that versions are."""

from tests.experiments.conftest import run as run
from tests.experiments.conftest import run_of_two as run_of_two
