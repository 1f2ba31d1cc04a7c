"""Encoding on a Ray cluster of two machines, each a process, while one of them or the driver is killed."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cai_pyserini.collections.hpo import Hpo
from cai_pyserini.core import artifact, packages
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.store import StorePath
from cai_pyserini.vectors import encode as stage
from cai_pyserini.vectors.shards import Vectors
from tests.conftest import s3_environment, stage_command

main = stage_command("encode")

SHARD, SHARDS = 40, 10
MACHINE = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False}
HEALTH = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 2}
DRIVER = f"""
from cai_pyserini.core import terminal
from cai_pyserini.cli.stage import main
from cai_pyserini.vectors import encode
encode.SHARD = {SHARD}
terminal.run(main)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, s3_server: str) -> Iterator[Any]:
    """A cluster of one machine, its head."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # or else other tests leave its workers little of the processors
        for name, value in s3_environment(s3_server).items():
            patch.setenv(name, value)
        made = Cluster(initialize_head=True, head_node_args=MACHINE | {"_system_config": HEALTH})
        yield made
        made.shutdown()


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("collection")
    with (folder / "corpus.jsonl").open("w") as file:
        for _, id, title, text, _ in islice(Hpo().records(), SHARD * SHARDS):
            file.write(json.dumps({"_id": id, "title": title, "text": text}) + "\n")
    return folder


@pytest.fixture(scope="module")
def plain(collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The vectors that the command writes without a cluster."""
    output = tmp_path_factory.mktemp("plain") / "vectors"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "SHARD", SHARD)
        main(arguments(collection, output))
    return output


def arguments(collection: Path, output: Path) -> list[str]:
    return [
        *("--collection", str(collection), "--encoder", "splade-tiny", "--output", str(output)),
        *("--device", "cpu", "--precision", "float32"),
    ]


def finished(output: Path) -> dict[str, int]:
    """The finished shards and their modification times."""
    return {path.name: path.stat().st_mtime_ns for path in output.glob("[0-9]????.npz")}


def assert_same(output: Path, plain: Path) -> None:
    """Assert that two folders have the same files, except for the encoding times."""
    names = [f"{number:05d}.npz" for number in range(SHARDS)]
    assert sorted(path.name for path in output.iterdir()) == [*names, "manifest.json"]
    assert Vectors(output).manifest.digest == Vectors(plain).manifest.digest
    for name in names:
        with (output / name).open("rb") as file, np.load(file) as found, np.load(plain / name) as expected:
            assert found.files == expected.files
            for array in set(found.files) - {"stats"}:
                assert found[array].tobytes() == expected[array].tobytes()
            assert found["stats"][:3].tolist() == expected["stats"][:3].tolist()


def wait_for(output: Path, shards: int) -> None:
    end = time.monotonic() + 300
    while len(finished(output)) < shards:
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
def test_a_killed_driver_and_a_killed_machine_cost_no_shard(
    cluster: Any, collection: Path, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "vectors"
    on_cluster = [*arguments(collection, output), "--ray", cluster.address]
    with subprocess.Popen([sys.executable, "-c", DRIVER, "encode", *on_cluster]) as driver:
        wait_for(output, 2)
        driver.kill()
    before = finished(output)
    assert len(before) < SHARDS and not (output / "manifest.json").exists()

    machine = cluster.add_node(**MACHINE)

    def kill_machine() -> int:
        wait_for(output, len(before) + 2)
        cluster.remove_node(machine, allow_graceful=False)  # kill -9
        return len(finished(output))

    monkeypatch.setattr("cai_pyserini.vectors.encode.SHARD", SHARD)
    with ThreadPoolExecutor() as pool:
        killed = pool.submit(kill_machine)
        main(on_cluster)
        assert killed.result() < SHARDS
    assert before.items() <= finished(output).items()  # those are not encoded again
    assert_same(output, plain)


@pytest.mark.slow
def test_machines_that_share_no_folder_write_to_a_store(
    cluster: Any, collection: Path, plain: Path, bucket: StorePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finished shard is not encoded again, so it keeps its encoding time."""
    output = bucket / "vectors"
    monkeypatch.setattr("cai_pyserini.vectors.encode.SHARD", SHARD)
    artifact.write_text(output / artifact.UNFINISHED, "")
    (output / "00003.npz").upload(plain / "00003.npz")
    main([*arguments(collection, output), "--ray", cluster.address])
    assert_same(output, plain)
    assert (output / "00003.npz").read_bytes() == (plain / "00003.npz").read_bytes()


@pytest.mark.slow
def test_a_folder_that_is_not_shared_is_refused(
    cluster: Any, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    output = Path("/proc/self/cwd/vectors")  # another folder for every process
    with pytest.raises(CaiError, match=r"/proc/self/cwd/vectors is not the same folder on all machines.* \(on "):
        main([*arguments(tiny, output), "--ray", cluster.address])
    assert not finished(output)


def test_an_address_that_does_not_answer(tiny: Path, tmp_path: Path) -> None:
    for address in ("127.0.0.1:1", "127.0.0.1", "nonsense"):
        with pytest.raises(CaiError, match=f"no Ray cluster at {address} .*: give host:port of its head"):
            main([*arguments(tiny, tmp_path / "vectors"), "--ray", address])
    assert not (tmp_path / "vectors").exists()


def test_without_ray_the_command_says_how_to_install_it(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    with pytest.raises(CaiError, match=r"ray not installed: .*\[ray\]"):
        main([*arguments(tiny, tmp_path / "vectors"), "--ray"])
