"""Work distributed over a Ray cluster."""

import os
from pathlib import Path

import pytest

from cai_pyserini.core.errors import CaiError
from cai_pyserini.vectors import cluster


def handles(number: int) -> bool:
    """Whether this process has a handler of a signal."""
    status = Path("/proc/self/status").read_text()
    return bool(int(status.split("SigCgt:")[1].split()[0], 16) & 1 << number - 1)


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_a_part_that_kills_its_workers_ends_the_run_and_signal_handlers_are_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its SIGSEGV handler, Java crashes this process some time later."""
    pytest.importorskip("ray")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # else its workers get little processor time beside other tests
    log = tmp_path / "log"

    def set_up() -> cluster.Work[str]:
        def work(number: int, part: str) -> None:
            with log.open("a") as file:
                file.write(part)
            if number == 1:
                os._exit(1)

        return work

    with cluster.connected(cluster.LOCAL), pytest.raises(CaiError, match="5 workers died on part 1; is their"):
        [*cluster.share(set_up, [(0, "0"), (1, "1")], gpus=False)]
    assert all(handles(number) for number in cluster.FATAL)
    assert sorted(log.read_text()) == ["0", *"1" * cluster.ATTEMPTS]
