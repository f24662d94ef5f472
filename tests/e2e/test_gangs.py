"""Gangs that shrink, grow and keep spares; arrays; reservations; constraints; the ledger of the cluster. On a real cluster."""

import json
import time

from processes import until
from trainer import steady


def test_an_elastic_gang_shrinks_when_a_node_dies_and_grows_when_it_is_back(make_cluster):
    cluster = make_cluster(nodes=3, cards=2, guaranteed_run_ms=1000)
    job = cluster.submit("--nodes", "1-3", "--ntasks-per-node", 2, *steady("--elastic", "--steps", 1_000_000, "--step-ms", 5, "--every", 20))
    cluster.wait_step(job, 100)
    assert cluster.show(job)["ranks"] == 6
    cluster.kill_node("n1")
    shrunk = cluster.wait(job, "a narrower gang", lambda seen: seen["attempt"] == 2 and seen["state"] == "RUNNING" and seen["ranks"] == 4, 30)
    assert "shrunk from 3 to 2 nodes" in shrunk["reason"]
    assert shrunk["attempts"][1]["restored"]["step"] >= 80
    # Each rank's samples were counted anew (the program checks that); what may be dropped was dropped, and is said.
    cluster.wait(job, "the word on what was dropped", lambda seen: any("is of 6 ranks, this gang has 4: not restored" in fault for fault in seen.get("faults", [])), 10)
    cluster.start_agent("n1")
    grown = cluster.wait(job, "the whole width again", lambda seen: seen["attempt"] == 3 and seen["state"] == "RUNNING" and seen["ranks"] == 6, 60)
    assert grown["attempts"][1]["kind"] == "RESIZE" and "grows from 2 to 3 nodes" in grown["attempts"][1]["cause"]
    assert grown["attempts"][2]["restored"]["step"] > shrunk["attempts"][1]["restored"]["step"]
    cluster.wait(job, "the same of the wider gang", lambda seen: any("is of 4 ranks, this gang has 6: not restored" in fault for fault in seen["faults"]), 10)
    assert "as the program has made them: 'step_s'" in cluster.cli("show", job).stdout
    cluster.cli("cancel", job)


def test_a_spare_takes_the_place_of_a_node_that_dies(make_cluster):
    cluster = make_cluster(nodes=3, cards=2)
    job = cluster.submit("-N", 2, "-n", 4, "--spares", 1, *steady("--steps", 1_000_000, "--step-ms", 5, "--every", 20))
    cluster.wait_step(job, 50)
    (spare,) = cluster.show(job)["spares"]
    waits = cluster.submit("-n", 1, "--", "true")
    time.sleep(1)
    assert cluster.show(waits)["state"] == "QUEUED", "the spare is the job's"
    lost = next(place["node"] for place in cluster.show(job)["gang"])
    cluster.kill_node(lost)
    view = cluster.wait(job, "a second attempt", lambda seen: seen["attempt"] == 2 and seen["state"] == "RUNNING", 30)
    assert spare in {place["node"] for place in view["gang"]} and not view.get("spares")
    cluster.cli("cancel", job)
    cluster.wait_completed(waits)


def test_an_array_runs_its_tasks_a_few_at_a_time(cluster):
    script = cluster.work / "array.sh"
    script.write_text("#!/bin/sh\n#SBATCH --array=2,4-8:2%2\n#SBATCH -o out-%A-%a\nsleep 1\necho $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT\n")
    done = cluster.cli("submit", "--parsable", str(script), cwd=cluster.work)
    first = int(done.stdout)
    most = 0
    while cluster.show(first + 3)["state"] != "COMPLETED":
        most = max(most, sum(job["state"] in ("RESERVED", "PREPARING", "RUNNING") for job in cluster.jobs()))  # of one moment
        time.sleep(0.05)
    assert most <= 2
    for task in (2, 4, 6, 8):
        until(f"the output of task {task}", lambda: (cluster.work / f"out-{first}-{task}").read_text() == f"{first} {task} of 4\n", 5)
    queue = cluster.cli("queue", "-e").stdout
    assert f"{first}_8" in queue
    assert f"{first}_4" in cluster.cli("show", f"{first}_4").stdout
    assert f"there is no job {first}_5" in cluster.cli("show", f"{first}_5", code=3).stderr


def test_an_array_is_cancelled_whole_or_by_task(cluster):
    first = int(cluster.cli("submit", "--parsable", "--array", "0-3", "--", "sleep", "600").stdout)
    after = cluster.submit("-d", f"afternotok:{first}_1", "--", "true")
    cluster.wait_state(first + 1, "RUNNING")
    cluster.cli("cancel", f"{first}_1")
    cluster.wait_completed(after)
    assert cluster.show(first)["state"] == "RUNNING"
    assert "3 of its 4 jobs cancelled" in cluster.cli("cancel", first).stdout
    for i in range(4):
        cluster.wait_state(first + i, "CANCELLED")


def test_maintenance_keeps_jobs_off_until_it_ends(cluster):
    cluster.cli("reserve", "firmware", "--nodes", "n[0-1]", "--start", "now+60", "--duration", "60", "--maintenance", "--note", "new firmware")
    assert "firmware" in cluster.cli("reservations").stdout
    endless = cluster.submit("-n", 1, "--", "true")
    too_long = cluster.submit("-n", 1, "-t", 5, "--", "true")
    cluster.wait_state(endless, "QUEUED")
    why = cluster.cli("why", too_long).stdout
    assert "reserved for others before it would end" in why
    assert "firmware" in cluster.cli("nodes").stdout
    refused = cluster.cli("submit", "--reservation", "firmware", "--", "true", code=3)
    assert "it is not for" in refused.stderr
    cluster.cli("unreserve", "firmware")
    cluster.wait_completed(endless)
    cluster.wait_completed(too_long)


def test_models_and_features_of_the_cluster_file_choose_the_nodes(make_cluster, tmp_path):
    fleet = tmp_path / "cluster.toml"
    fleet.write_text('[cards.H100]\nprice_per_hour = 2.5\n[[nodes]]\nnames = "n1"\ncards = "H100"\nfeatures = ["nvme"]\n')
    cluster = make_cluster(cluster_file=fleet)
    job = cluster.submit("--gpus-per-task=h100:1", "-C", "nvme", "--", "sleep", "600")
    cluster.wait_state(job, "RUNNING")
    assert [place["node"] for place in cluster.show(job)["gang"]] == ["n1"]
    assert "ruled out by what was asked for" in cluster.cli("why", job).stdout
    refused = cluster.cli("submit", "--gpus-per-task=b200:1", "--", "true", code=3)
    assert "no node has cards of the model b200" in refused.stderr
    cluster.cli("cancel", job)
    cluster.wait_state(job, "CANCELLED")
    report = json.loads(cluster.cli("report", job, "--json").stdout)["report"]
    assert report["cost"] > 0


def test_the_ledger_of_the_cluster_adds_up(cluster):
    job = cluster.submit("-n", 4, *steady("--steps", 200, "--every", 20))
    cluster.wait_step(job, 50)
    cluster.kill_rank(job, 1)
    cluster.wait_completed(job)
    cluster.cli("drain", "n0")
    time.sleep(1)
    report = json.loads(cluster.cli("report", "--cluster", "--json").stdout)["cluster_report"]
    causes = {cause["name"]: cause.get("card_s", 0) for cause in report["causes"]}
    assert abs(sum(causes.values()) - report["owned_card_s"]) < 1e-3 * report["owned_card_s"]
    for name in ("compute", "drained", "free"):
        assert causes[name] > 0, causes
    text = cluster.cli("report", "--cluster").stdout
    assert "compute" in text and "drained" in text
