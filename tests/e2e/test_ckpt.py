"""`gangline ckpt` on the checkpoints of a real gang: what it says is what h5py and NumPy find, which know nothing of Gangline."""

import json
import pathlib
import shutil
import struct

import pytest

from processes import until
from trainer import steady

h5py = pytest.importorskip("h5py")
numpy = pytest.importorskip("numpy")

STEPS = 60
RANKS = 3


@pytest.fixture
def trained(cluster):
    """A cluster, the number of a job of three ranks that has ended, and its checkpoint folder."""
    job = cluster.submit("-n", RANKS, *steady("--steps", STEPS, "--step-ms", 5, "--every", 20))
    view = cluster.wait_completed(job)
    return cluster, job, pathlib.Path(view["checkpoint_folder"])


def answer(cluster, *words, code=0):
    said = json.loads(cluster.cli("ckpt", *words, "--json", code=code).stdout)
    assert said.pop("schema") == "gangline/1"
    return next(iter(said.values()))


def newest(cluster, job):
    return answer(cluster, "ls", job)[-1]


def test_ls_show_and_verify_say_what_is_there(trained):
    cluster, job, folder = trained
    listed = answer(cluster, "ls", job)
    assert listed and all(one["state"] == "durable" and one["job"] == job and one["shards"] == RANKS for one in listed), listed
    assert [one["step"] for one in listed] == sorted(one["step"] for one in listed)
    committed = {entry["step"] for entry in cluster.show(job)["checkpoints"]}
    assert {one["step"] for one in listed} <= committed
    assert listed == [dict(one, age_s=listed[at]["age_s"]) for at, one in enumerate(answer(cluster, "ls", folder))]

    shown = answer(cluster, "show", "@")
    assert shown["path"] == listed[-1]["path"] and shown["world"] == RANKS
    tensors = {tensor["name"]: tensor for tensor in shown["tensors"]}
    assert tensors["weights"]["policy"] == "replicated" and tensors["weights"]["global_shape"] == [1024] and tensors["weights"]["shards"] == 1
    assert tensors["moments"]["policy"] == "sliced" and tensors["moments"]["global_shape"] == [256 * RANKS] and tensors["moments"]["shards"] == RANKS
    for shard in shown["shards"]:
        with h5py.File(pathlib.Path(shown["path"]) / shard["name"], "r") as file:
            assert file.attrs["rank"] == shard["rank"] and file.attrs["world"] == RANKS
            assert file["moments"].id.get_offset() == next(box["file_offset"] for box in tensors["moments"]["boxes"] if box["shard"] == shard["rank"])
    assert "weights" in cluster.cli("ckpt", "show", folder, shown["step"]).stdout

    verified = answer(cluster, "verify", "--all", job)
    assert len(verified) == len(listed) and all(one["good"] for one in verified)
    shard = pathlib.Path(shown["path"]) / shown["shards"][1]["name"]
    with open(shard, "r+b") as file:
        file.seek(-1, 2)
        byte = file.read(1)[0]
        file.seek(-1, 2)
        file.write(bytes([byte ^ 1]))
    said = cluster.cli("ckpt", "verify", job, code=1)
    assert shard.name in said.stdout and "block 0" in said.stdout


def test_view_and_exports_hold_what_the_shards_hold(trained):
    cluster, job, _ = trained
    path = pathlib.Path(newest(cluster, job)["path"])
    shards = [h5py.File(shard, "r") for shard in sorted(path.glob("shard-*.h5"))]
    weights = next(shard["weights"][()] for shard in shards if "weights" in shard)
    moments = numpy.concatenate([shard["moments"][()] for shard in shards])
    assert moments.shape == (256 * RANKS,) and moments.any() and weights.any()

    with h5py.File(path / "view.h5", "r") as view:  # the save has made it
        assert view["moments"].is_virtual and view.attrs["step"] == newest(cluster, job)["step"]
        assert (view["moments"][()] == moments).all() and (view["weights"][()] == weights).all()
    (path / "view.h5").unlink()
    viewed = answer(cluster, "view", job)
    assert viewed["path"] == str(path / "view.h5")
    with h5py.File(viewed["path"], "r") as view:
        assert view["moments"].is_virtual
        assert (view["moments"][()] == moments).all() and (view["weights"][()] == weights).all()
    answer(cluster, "view", job, "--output", "whole.h5")
    assert "--force" in cluster.cli("ckpt", "view", job, "--output", "whole.h5", code=3).stderr
    cluster.cli("ckpt", "view", job, "--output", "whole.h5", "--force")
    assert answer(cluster, "verify", job)[0]["good"]

    answer(cluster, "export", job, "--format", "npz", "--output", "all.npz")
    loaded = numpy.load(cluster.work / "all.npz", allow_pickle=False)
    assert (loaded["moments"] == moments).all() and (loaded["weights"] == weights).all()
    answer(cluster, "export", path, "--output", "all.safetensors")
    raw = (cluster.work / "all.safetensors").read_bytes()
    size, = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + size])
    for name, expected in (("moments", moments), ("weights", weights)):
        begin, end = header[name]["data_offsets"]
        assert header[name]["dtype"] == "U64" and header[name]["shape"] == list(expected.shape)
        assert (numpy.frombuffer(raw[8 + size + begin:8 + size + end], "<u8") == expected).all()
    assert "it exists" in cluster.cli("ckpt", "export", job, "--output", "all.npz", code=3).stderr


def test_diff_tells_two_steps_apart_and_prune_keeps_the_newest(trained):
    cluster, job, folder = trained
    copies = cluster.folder / "copies"
    shutil.copytree(folder, copies)
    listed = answer(cluster, "ls", copies)
    assert len(listed) >= 2, listed
    first, last = listed[0], listed[-1]
    assert answer(cluster, "diff", job, last["path"])["equal"]
    found = answer(cluster, "diff", copies, first["step"], last["step"], code=1)
    changed = {one["name"]: one for one in found["differences"]}
    assert changed["weights"]["change"] == "values" and changed["weights"]["differing"] > 0
    where = changed["weights"]["largest_absolute"]
    values = []
    for one in (first, last):
        for shard in pathlib.Path(one["path"]).glob("shard-*.h5"):
            with h5py.File(shard, "r") as file:
                if "weights" in file:
                    values.append(file["weights"][()])
    differences = [abs(int(a) - int(b)) for a, b in zip(*values)]
    assert max(differences) == differences[where["at"][0]] and changed["weights"]["differing"] == sum(d != 0 for d in differences)

    assert "--yes" in cluster.cli("ckpt", "prune", copies, "--keep", 1, code=3).stderr
    planned = answer(cluster, "prune", copies, "--keep", 1, "--dry-run")
    assert planned["count"] == len(listed) - 1 and len(answer(cluster, "ls", copies)) == len(listed)
    assert answer(cluster, "prune", copies, "--keep", 1, "--yes")["done"]
    assert [one["step"] for one in answer(cluster, "ls", copies)] == [last["step"]]
    assert sorted(path.name for path in copies.iterdir() if path.name != ".retention") == [pathlib.Path(last["path"]).name]


def test_checkpoints_stay_that_somebody_needs(cluster):
    script = cluster.work / "job.sh"
    script.write_text("#!/bin/sh\n#GANG --keep-last 2 --keep-every 50\n#GANG --keep-best=1\nsrun "
                      + " ".join(str(word) for word in steady("--steps", 120, "--step-ms", 2, "--every", 10, "--wait-saves")[1:]) + "\n")
    job = cluster.submit("-n", 2, "--export", "ALL,GANGLINE_CHECKPOINT_SCRUB=0", script)
    view = cluster.wait_completed(job)
    needed = {40: "best", 50: "every", 100: "every", 110: "last", 120: "last"}
    assert {one["step"]: one["needed_by"] for one in view["checkpoints"]} == needed
    assert [one["metric"] for one in view["checkpoints"]] == [0, 10, 60, 70, 80]
    listed = answer(cluster, "ls", job)
    assert {one["step"]: one["needed_by"] for one in listed} == needed and listed[0]["metric"] == 0
    assert "NEEDED BY" in cluster.cli("show", job).stdout
    assert answer(cluster, "pin", job, 50)["pinned"]
    assert answer(cluster, "prune", job, "--keep", 1, "--yes")["count"] == 3
    assert [one["step"] for one in answer(cluster, "ls", job)] == [50, 120]
    assert "the newest may turn out damaged" in cluster.cli("submit", "--keep-last", 1, "--", "true", code=2).stderr


def test_a_checkpoint_that_rots_at_rest_is_told_and_stops_nothing(cluster):
    """The bit is flipped before the first look for something to read back, ten seconds behind the first save."""
    job = cluster.submit("-n", 2, "--keep-every", 100, *steady("--steps", 1000, "--step-ms", 20, "--every", 100))
    until("a first checkpoint", lambda: cluster.show(job)["checkpoints"], 60)
    first = pathlib.Path(answer(cluster, "ls", job)[0]["path"])
    shard = first / "shard-00001-of-00002.h5"
    with open(shard, "r+b") as file:
        file.seek(-1, 2)
        byte = file.read(1)[0]
        file.seek(-1, 2)
        file.write(bytes([byte ^ 1]))
    view = cluster.wait_completed(job, 90)
    damaged = next(one for one in view["checkpoints"] if one["step"] == 100)
    assert damaged["damaged"] and shard.name in damaged["note"] and damaged["needed_by"] == ""
    assert view["attempt"] == 1 and any("step 100" in fault and "damaged" in fault for fault in view["faults"])
    states = {one["step"]: one["state"] for one in answer(cluster, "ls", job)}
    assert states.pop(100) == "tainted" and set(states.values()) == {"durable"}
    assert any(one["verified_unix_s"] for one in answer(cluster, "ls", job))


def test_a_job_that_nobody_knows_and_no_cluster_are_refused_with_words(cluster):
    assert "no job 99" in cluster.cli("ckpt", "ls", 99, code=3).stderr
    said = cluster.cli("ckpt", "ls", 99, code=4, environment={"GANGLINE_COORDINATOR": "", "GANGLINE_COORDINATOR_KEY": "", "GANGLINE_KEY": ""})
    assert "no cluster is configured" in said.stderr and "./99" in said.stderr
