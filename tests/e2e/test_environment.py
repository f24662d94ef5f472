"""What each rank finds in its environment, scripts with steps inside a job, and programs that nobody here wrote."""

import json
import subprocess

import pytest

from cluster import PROGRAMS

TORCH = subprocess.run(["/usr/bin/python3", "-c", "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"]).returncode == 0

PRINT_ENVIRONMENT = ["--", "/usr/bin/python3", "-c", "import json, os; print(json.dumps(dict(os.environ)), flush=True)"]


def environments(cluster, *words, environment=None):
    job = cluster.submit(*words, *PRINT_ENVIRONMENT, environment=environment)
    cluster.wait_completed(job)
    found = [json.loads(line) for line in cluster.logs(job).splitlines()]
    return job, {int(variables["RANK"]): variables for variables in found}


def test_every_rank_knows_its_place(cluster):
    job, ranks = environments(cluster, "-J", "whoami", "-n", 6, "-N", 2, "--ntasks-per-node", 3)
    assert sorted(ranks) == [0, 1, 2, 3, 4, 5]
    cards = {}
    for rank, variables in ranks.items():
        node = variables["GANGLINE_NODE"]
        expected = {
            "WORLD_SIZE": "6", "LOCAL_RANK": str(rank % 3), "LOCAL_WORLD_SIZE": "3", "NODE_RANK": str(rank // 3), "MASTER_ADDR": "127.0.0.1",
            "SLURM_JOB_ID": str(job), "SLURM_JOBID": str(job), "SLURM_JOB_NAME": "whoami", "SLURM_JOB_NODELIST": "n[0-1]", "SLURM_NODELIST": "n[0-1]",
            "SLURM_JOB_NUM_NODES": "2", "SLURM_NNODES": "2", "SLURM_NTASKS": "6", "SLURM_NPROCS": "6", "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(rank % 3), "SLURM_NODEID": str(rank // 3), "SLURMD_NODENAME": node, "SLURM_NTASKS_PER_NODE": "3",
            "SLURM_TASKS_PER_NODE": "3(x2)", "SLURM_GPUS_ON_NODE": "3", "SLURM_RESTART_COUNT": "0", "SLURM_SUBMIT_DIR": str(cluster.work),
            "SLURM_STEP_ID": "0", "GANGLINE_JOB_ID": str(job), "GANGLINE_JOB_NAME": "whoami", "GANGLINE_ATTEMPT": "1", "GANGLINE_RESTART_COUNT": "0",
            "GANGLINE_MARK": f"{cluster.name}/{node}/{job}.1", "GANGLINE_CHECKPOINT_DIR": str(cluster.checkpoints / f"job-{job}"),
        }
        different = {name: (variables.get(name), value) for name, value in expected.items() if variables.get(name) != value}
        assert not different, f"rank {rank}: {different}"
        for name in ("MASTER_PORT", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_GPUS", "SLURM_CPUS_ON_NODE", "SLURM_JOB_USER", "GANGLINE_WORKER_SOCKET", "GANGLINE_PROGRESS"):
            assert variables.get(name), f"rank {rank} has no {name}"
        for name in ("GANGLINE_RESTORE_STEP", "GANGLINE_RESTORE_ATTEMPT", "GANGLINE_RESTORE_SHA256", "GANGLINE_STEP_SOCKET"):
            assert name not in variables
        cards.setdefault(node, []).append(variables["CUDA_VISIBLE_DEVICES"])
    assert len({variables["MASTER_PORT"] for variables in ranks.values()}) == 1
    assert all(len(set(own)) == 3 and all(card.isdigit() and int(card) < 4 for card in own) for own in cards.values()), cards


def test_the_environment_is_built_not_inherited(cluster):
    given = {"MINE": "one two", "RANK": "99", "SLURM_JOB_ID": "99", "OMPI_COMM_WORLD_RANK": "99", "PMIX_RANK": "99", "GANGLINE_STEP_SOCKET": "x", "EMPTY": ""}
    _, ranks = environments(cluster, environment=given)
    assert ranks[0]["MINE"] == "one two" and ranks[0]["RANK"] == "0" and ranks[0]["SLURM_JOB_ID"] == ranks[0]["GANGLINE_JOB_ID"] and ranks[0]["EMPTY"] == ""
    assert ranks[0].get("PMIX_RANK") != "99" and "GANGLINE_STEP_SOCKET" not in ranks[0] and "OMPI_COMM_WORLD_RANK" not in ranks[0]
    _, ranks = environments(cluster, "--export", "ONLY=this", environment=given)
    assert ranks[0]["ONLY"] == "this" and "MINE" not in ranks[0]
    _, ranks = environments(cluster, "--export", "NONE", environment=given)
    assert "MINE" not in ranks[0] and ranks[0]["PATH"]
    # The daemons' own variables must not leak into a job.
    assert ranks[0].get("GANGLINE_E2E", "") in ("", f"{cluster.name}/cli")


def test_cards_by_number_and_cpus_only(cluster):
    _, ranks = environments(cluster, "-n", 2, "--cards-per-rank", 2, "-N", 1)
    assert [len(ranks[rank]["CUDA_VISIBLE_DEVICES"].split(",")) for rank in (0, 1)] == [2, 2]
    assert not set(ranks[0]["CUDA_VISIBLE_DEVICES"].split(",")) & set(ranks[1]["CUDA_VISIBLE_DEVICES"].split(","))
    _, ranks = environments(cluster, "--cards-per-rank", 0)
    assert ranks[0]["CUDA_VISIBLE_DEVICES"] == ""


def test_a_restart_counts(cluster):
    job = cluster.submit("--retries", 1, "--", "sh", "-c", "echo $GANGLINE_ATTEMPT $GANGLINE_RESTART_COUNT $SLURM_RESTART_COUNT; [ $GANGLINE_ATTEMPT = 2 ]")
    cluster.wait_completed(job)
    assert cluster.logs(job).splitlines() == ["1 0 0", "2 1 1"]


def test_ranks_start_in_the_submit_folder_with_nothing_on_standard_input(cluster):
    job = cluster.submit("--", "sh", "-c", "pwd; wc -c; umask")
    cluster.wait_completed(job)
    folder, count, _ = cluster.logs(job).split()
    assert folder == str(cluster.work) and count == "0"
    (cluster.work / "below").mkdir()
    job = cluster.submit("-D", "below", "--", "pwd")
    cluster.wait_completed(job)
    assert cluster.logs(job).strip() == str(cluster.work / "below")


def test_ranks_inherit_no_descriptor(cluster):
    job = cluster.submit("--", "sh", "-c", "ls /proc/self/fd | wc -w")
    cluster.wait_completed(job)
    assert cluster.logs(job).strip() == "4"  # 0, 1, 2 and that of ls itself


# ---- scripts

def script(cluster, text, name="job.sh"):
    path = cluster.work / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("launcher", ["srun", "gangline launch"])
def test_a_script_starts_ranks_on_all_its_nodes(cluster, launcher):
    job = cluster.submit(script(cluster, f"""#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2
#GANG --job-name=steps
echo "script on $SLURMD_NODENAME with $SLURM_NTASKS ranks on $SLURM_JOB_NODELIST"
{launcher} sh -c 'echo "rank $RANK of $WORLD_SIZE on $GANGLINE_NODE step $SLURM_STEP_ID"'
{launcher} -n 1 sh -c 'echo "alone $WORLD_SIZE"'
echo end
"""))
    view = cluster.wait_completed(job)
    assert view["name"] == "steps"
    lines = cluster.logs(job).splitlines()
    assert lines[0] == "script on n0 with 4 ranks on n[0-1]"
    ranks = sorted(line for line in lines if line.startswith("rank "))
    assert [line.rsplit(" step", 1)[0] for line in ranks] == ["rank 0 of 4 on n0", "rank 1 of 4 on n0", "rank 2 of 4 on n1", "rank 3 of 4 on n1"]
    assert lines[-2:] == ["alone 1", "end"]


def test_a_scripts_exit_code_and_its_steps(cluster):
    job = cluster.submit(script(cluster, "#!/bin/bash\n#SBATCH -n 2\nsrun sh -c 'exit $((RANK * 7))'\necho \"step said $?\"\nexit 3\n"))
    view = cluster.wait_state(job, "FAILED")
    assert view["exit_code"] == 3
    assert "step said 7" in cluster.logs(job)


def test_a_cancelled_script_takes_its_steps_along(cluster):
    job = cluster.submit("--grace", "300ms", script(cluster, "#!/bin/bash\n#SBATCH -N 2 -n 2\nsrun sh -c 'trap \"\" TERM; echo up; sleep 300'\n"))
    cluster.wait(job, "both up", lambda view: view["state"] == "RUNNING" and cluster.logs(job).split().count("up") == 2, 15)
    cluster.cli("cancel", job)
    cluster.wait_state(job, "CANCELLED")
    cluster.assert_no_gang_left()


def test_an_mpi_step_inside_a_script(cluster):
    job = cluster.submit(script(cluster, "#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node 2\nsrun /usr/bin/python3 -m mpi4py.bench helloworld\nsrun -n 2 /usr/bin/python3 -m mpi4py.bench helloworld\n"))
    cluster.wait_completed(job, 60)
    lines = [line for line in cluster.logs(job).splitlines() if line.startswith("Hello")]
    assert sum(" of 4" in line for line in lines) == 4 and sum(" of 2" in line for line in lines) == 2, lines


def test_output_patterns(cluster):
    job = cluster.submit("-J", "named", "-n", 2, "-o", "out-%x-%j-%t.txt", "--", "sh", "-c", "echo rank $RANK; echo bad $RANK >&2")
    cluster.wait_completed(job)
    for rank in (0, 1):
        assert sorted((cluster.work / f"out-named-{job}-{rank}.txt").read_text().splitlines()) == [f"bad {rank}", f"rank {rank}"]
    job = cluster.submit("-o", "o.txt", "-e", "e.txt", "--", "sh", "-c", "echo out; echo err >&2")
    cluster.wait_completed(job)
    assert (cluster.work / "o.txt").read_text() == "out\n" and (cluster.work / "e.txt").read_text() == "err\n"


# ---- programs that nobody here wrote

def test_mpi4py_ring_over_two_nodes(cluster):
    job = cluster.submit("-n", 4, "-N", 2, "--", "/usr/bin/python3", "-m", "mpi4py.bench", "ringtest", "-l", "100", "-n", "1000")
    cluster.wait_completed(job, 60)
    text = cluster.logs(job)
    assert "time for 100 loops" in text and "4 processes" in text, text


def test_mpi4py_hello_world_knows_every_rank(cluster):
    job = cluster.submit("-n", 8, "-N", 2, "--", "/usr/bin/python3", "-m", "mpi4py.bench", "helloworld")
    cluster.wait_completed(job, 60)
    lines = cluster.logs(job).splitlines()
    assert sorted(line.split(" on ")[0] for line in lines if line.startswith("Hello")) == [f"Hello, World! I am process {rank} of 8" for rank in range(8)], lines


@pytest.mark.skipif(not TORCH, reason="python3-torch is not installed")
@pytest.mark.long
def test_torch_initialises_from_the_environment(cluster):
    # Debian 13's PyTorch is built without the libuv that its own default asks for.
    job = cluster.submit("-n", 4, "-N", 2, "--", "/usr/bin/python3", PROGRAMS / "torch_ddp.py", environment={"USE_LIBUV": "0"})
    cluster.wait_completed(job, 90)
    lines = sorted(line for line in cluster.logs(job).splitlines() if line.startswith("rank "))
    assert len(lines) == 4 and len({line.split(":", 1)[1] for line in lines}) == 1, lines


def test_many_ranks_on_two_nodes(make_cluster):
    cluster = make_cluster(nodes=2, cards=16)
    job = cluster.submit("-n", 32, "--", "sh", "-c", "echo $RANK")
    cluster.wait_completed(job)
    assert sorted(map(int, cluster.logs(job).split())) == list(range(32))
