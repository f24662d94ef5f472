"""A full disk: a save or a log write fails, the job goes on with the older checkpoint, `show` says so, and nothing truncated is
ever trusted. Small tmpfs mounts play the disk; without root these tests are skipped."""

import os
import subprocess

import pytest

from processes import until
from trainer import steady, undisturbed_weights, weights

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a small tmpfs is mounted as the disk that fills up")


@pytest.fixture
def small_disk():
    mounted = []

    def mount(path, mib):
        path.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "gangline-e2e", str(path)], capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"cannot mount a tmpfs here: {done.stderr.strip()}")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(folder):
    """Writes until nothing fits any more; returns the file."""
    filler = folder / "filler"
    with open(filler, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 65536)
        except OSError:
            pass
        try:
            while True:
                file.write(b"x")
        except OSError:
            pass
    return filler


@pytest.mark.parametrize("memory", [True, False], ids=["snapshots in memory", "disk only"])
def test_during_a_save_the_older_checkpoint_or_a_snapshot_serves(cluster, small_disk, memory):
    folder = small_disk(cluster.folder / "disk", 48)
    expected = undisturbed_weights(cluster, 2, 160, "--payload-mib", 2)
    tier = [] if memory else ["--export", "ALL,GANGLINE_CHECKPOINT_MEMORY_MIB=0"]
    job = cluster.submit("-n", 2, "--checkpoint-dir", folder / "saves", *tier, *steady("--steps", 160, "--every", 10, "--payload-mib", 2))
    cluster.wait(job, "a checkpoint", lambda view: view["checkpoints"], 20)
    filler = fill(folder)
    view = cluster.wait(job, "the fault is shown", lambda view: view["faults"], 20)
    assert any("space" in fault.lower() or "full" in fault.lower() for fault in view["faults"]), view["faults"]
    assert view["state"] == "RUNNING" and view["attempt"] == 1
    committed = max(entry["step"] for entry in view["checkpoints"])
    cluster.wait_step(job, committed + 25)

    # A rank dies now: what counts is the last whole checkpoint, or what all ranks had whole in memory since.
    cluster.kill_rank(job, 1)
    view = cluster.wait(job, "attempt 2", lambda view: view["attempt"] >= 2 and view["state"] == "RUNNING", 10)
    restored = view["attempts"][1]["restored"]
    newest = max(entry["step"] for entry in view["checkpoints"] if entry["attempt"] == 1)
    assert restored["step"] > newest >= committed if restored["in_memory"] else restored["step"] == newest >= committed
    assert memory or not restored["in_memory"]
    filler.unlink()
    view = cluster.wait(job, "saved again", lambda view: max(entry["step"] for entry in view["checkpoints"]) > committed, 20)
    view = cluster.wait_completed(job)
    assert weights(cluster, job) == expected


def test_during_a_log_write_no_rank_waits_and_nothing_is_lost(make_cluster, small_disk, tmp_path):
    small_disk(tmp_path / "cluster1/n0/spool", 16)
    cluster = make_cluster(nodes=1)
    beats = cluster.work / "beats"
    job = cluster.submit("-o", "/dev/null", "--", "sh", "-c",
                         f"i=0; while [ $i -lt 60 ]; do i=$((i+1)); seq -f \"$i %05g line of text that fills a disk\" 1 200; echo $i >> {beats}; sleep 0.05; done")
    cluster.wait_ranks(job)
    until("beats", lambda: beats.exists() and len(beats.read_text().split()) >= 5, 10)
    filler = fill(cluster.folder / "n0/spool")
    view = cluster.wait(job, "the fault is shown", lambda view: view["faults"], 20)
    assert any("space" in fault.lower() or "full" in fault.lower() for fault in view["faults"]), view["faults"]
    before = len(beats.read_text().split())
    until("the rank goes on", lambda: len(beats.read_text().split()) >= before + 5, 10)
    filler.unlink()
    view = cluster.wait_completed(job)
    assert view["attempt"] == 1
    lines = cluster.logs(job).splitlines()
    wanted = [f"{turn} {number:05d} line of text that fills a disk" for turn in range(1, 61) for number in range(1, 201)]
    assert lines == wanted, f"{len(lines)} of {len(wanted)} lines"


def test_of_the_users_output_file_stops_nothing(cluster, small_disk):
    folder = small_disk(cluster.folder / "disk", 1)
    fill(folder)
    job = cluster.submit("-o", folder / "out", "--", "sh", "-c", "seq 1 20000; sleep 1; echo end")
    view = cluster.wait_completed(job)
    assert any("out" in fault for fault in view["faults"]), view["faults"]
    assert cluster.logs(job).splitlines() == [str(i) for i in range(1, 20001)] + ["end"]


def test_of_the_journal_ends_the_coordinator_before_it_promises(make_cluster, small_disk, tmp_path):
    """What cannot be written down is not answered; with space again, the same journal serves on."""
    small_disk(tmp_path / "cluster1/coordinator", 8)
    cluster = make_cluster(nodes=1)
    done = cluster.submit("--", "true")
    cluster.wait_completed(done)
    filler = fill(cluster.folder / "coordinator")
    accepted = []
    for _ in range(400):  # a journal has some pages in hand
        answer = cluster.cli("submit", "--parsable", "-H", "--comment", "x" * 4000, "--", "true", code=None, timeout=60)
        if answer.returncode != 0:
            break
        accepted.append(int(answer.stdout))
    else:
        pytest.fail("the disk never filled")
    filler.unlink()
    if not cluster.coordinator.is_alive():
        cluster.start_coordinator()
    for job in accepted:
        assert cluster.show(job)["state"] == "QUEUED"
    assert cluster.show(done)["state"] == "COMPLETED"
    cluster.wait_node("n0", "idle")
    cluster.wait_completed(cluster.submit("--", "true"))
