"""L1-L8: how fast gangs start, come back and are accepted, each beside a peer in the same run."""

import os
import shutil
import signal
import subprocess
import tempfile
import time

import common
import slurm

MPI_STAMP = os.path.join(common.BIN, "mpi_stamp")
START_STAMP = os.path.join(common.BIN, "start_stamp")


def launch_time(command, ranks, env=None):
    """From just before `command` is started until the last rank's stamp."""
    folder = common.fresh_folder()
    try:
        start = time.monotonic()
        process = subprocess.Popen([*command, MPI_STAMP, folder], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        last, _ = common.wait_stamps(folder, ranks)
        _, errors = process.communicate(timeout=60)
        if process.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {errors.decode()[-500:]}")
        return last - start
    finally:
        shutil.rmtree(folder)


def singletons_time(ranks):
    """The raw limit on this machine: the same programs started at once as singletons: no launcher, no daemon, nothing exchanged."""
    folder, own = common.fresh_folder(), common.fresh_folder()
    env = dict(os.environ, OMPI_MCA_ess_singleton_isolated="1", OMPI_MCA_pml="ob1", OMPI_MCA_btl="self,vader,tcp")
    for rank in range(ranks):
        os.mkdir(os.path.join(own, str(rank)))  # their session folders would be in each other's way
    try:
        start = time.monotonic()
        running = [subprocess.Popen([MPI_STAMP, folder], env=dict(env, TMPDIR=os.path.join(own, str(rank))), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for rank in range(ranks)]
        last, _ = common.wait_stamps(folder, ranks)
        for process in running:
            process.wait(60)
        return last - start
    finally:
        shutil.rmtree(folder)
        shutil.rmtree(own, ignore_errors=True)


def submit_time(cluster, ranks, nodes, program):
    folder = common.fresh_folder()
    try:
        start = time.monotonic()
        job = cluster.submit("-o", "none", "-N", str(nodes), "-n", str(ranks), "--", program, folder)
        last, _ = common.wait_stamps(folder, ranks)
        state = cluster.wait_end(job)
        if state != "COMPLETED":
            raise RuntimeError(f"job {job} ended as {state}")
        return last - start
    finally:
        shutil.rmtree(folder)


def l1(rows, rounds):
    have_mpirun = shutil.which("mpirun") is not None
    env = {k: v for k, v in os.environ.items() if not k.startswith("GANGLINE_")}
    state = tempfile.mkdtemp(prefix="gangline-bench-")
    env["GANGLINE_STATE"] = state
    with common.Cluster(2, 8) as cluster:
        for ranks in (4, 16):
            times = {"run": [], "submit": [], "tuned": [], "shipped": [], "raw": []}
            for _ in range(rounds):
                times["run"].append(launch_time([common.GANGLINE, "run", "--ranks", str(ranks), "--virtual-nodes", "2", "--"], ranks, env))
                cluster.settle()
                times["submit"].append(submit_time(cluster, ranks, 2, MPI_STAMP))
                times["raw"].append(singletons_time(ranks))
                if have_mpirun:
                    times["tuned"].append(launch_time([*common.TUNED_MPIRUN, "-n", str(ranks)], ranks))
                    times["shipped"].append(launch_time([*common.SHIPPED_MPIRUN, "-n", str(ranks)], ranks))
            for kind, what in (("submit", "submit to a standing cluster"), ("run", "run: private cluster brought up, job")):
                text = f"{what} -> all {ranks} ranks through MPI_Init, 2 nodes"
                rows.row("L1", text, times[kind], "s", times["raw"], "the ranks alone, as singletons")
                if have_mpirun:
                    rows.row("L1", text, times[kind], "s", times["tuned"], "mpirun tuned", "<= 1")
                    rows.row("L1", text, times[kind], "s", times["shipped"], "mpirun as shipped", "<= 1/3")
                else:
                    rows.row("L1", text, times[kind], "s", None, "mpirun absent")
    shutil.rmtree(state, ignore_errors=True)


def slurm_start_time(cluster, command, ranks):
    folder = common.fresh_folder()
    try:
        start = time.monotonic()
        process = subprocess.Popen([*command(folder)], env=cluster.env, cwd=cluster.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        last, _ = common.wait_stamps(folder, ranks)
        process.wait(60)
        return last - start
    finally:
        shutil.rmtree(folder)


def l2(rows, rounds):
    missing = slurm.absent()
    base = tempfile.mkdtemp(prefix="gangline-slurm-")
    ours, srun, sbatch = [], [], []
    with common.Cluster(4, 4) as cluster:
        for _ in range(rounds):
            cluster.settle()
            ours.append(submit_time(cluster, 16, 4, START_STAMP))
    if not missing:
        # Slurm's daemons run beside nothing of ours: both sides have the machine to themselves.
        with slurm.Slurm(os.path.join(base, "slurm")) as peer:
            for _ in range(rounds):
                srun.append(slurm_start_time(peer, lambda f: ["srun", "-N4", "-n16", START_STAMP, f], 16))
                sbatch.append(slurm_start_time(peer, lambda f: ["sbatch", "-W", "-N4", "-n16", "--wrap", f"srun {START_STAMP} {f}"], 16))
        rows.row("L2", "submit -> last of 16 ranks started, 4 nodes x 4", ours, "s", srun, "srun", "<= 1")
        rows.row("L2", "submit -> last of 16 ranks started, 4 nodes x 4", ours, "s", sbatch, "sbatch", "<= 1/5")
    else:
        rows.row("L2", "submit -> last of 16 ranks started, 4 nodes x 4", ours, "s")
        rows.absent("L2", "srun, sbatch", f"missing: {' '.join(missing)} (./bench --install-peers)")
    shutil.rmtree(base, ignore_errors=True)


def l3(rows, rounds):
    with common.Cluster(2, 8) as cluster:
        for ranks, bar in ((4, "<= 0.10 s"), (16, "<= 0.30 s")):
            times = []
            for _ in range(rounds):
                folder = common.fresh_folder()
                job = cluster.submit("-o", "none", "-N", "2", "-n", str(ranks), "--", MPI_STAMP, folder, "hold")
                _, pids = common.wait_stamps(folder, ranks)
                time.sleep(1.0)  # a gang that runs, not one that starts
                victim = next(pid for name, pid in pids.items() if name.split(".")[0] == str(ranks - 1))
                start = time.monotonic()
                os.kill(victim, signal.SIGKILL)
                last, _ = common.wait_stamps(folder, ranks, known=set(pids))
                times.append(last - start)
                cluster.cli("cancel", str(job))
                cluster.wait_end(job)
                shutil.rmtree(folder)
                cluster.settle()
            rows.row("L3", f"SIGKILL of a rank -> all {ranks} new ranks through MPI_Init, 2 nodes", times, "s", bar=bar)
    if shutil.which("mpirun"):
        stops = []
        for _ in range(max(3, rounds // 3)):
            folder = common.fresh_folder()
            process = subprocess.Popen([*common.TUNED_MPIRUN, "-n", "4", MPI_STAMP, folder, "hold"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            _, pids = common.wait_stamps(folder, 4)
            start = time.monotonic()
            os.kill(next(iter(pids.values())), signal.SIGKILL)
            process.wait(30)
            stops.append(time.monotonic() - start)
            shutil.rmtree(folder)
        rows.row("L3", "peer: mpirun only stops after SIGKILL of one of 4 ranks", stops, "s")


def l4(rows, rounds):
    times = []
    for _ in range(rounds):
        with common.Cluster(3, 2) as cluster:
            folder = common.fresh_folder()
            job = cluster.submit("-o", "none", "-N", "2", "-n", "4", "--", MPI_STAMP, folder, "hold")
            _, pids = common.wait_stamps(folder, 4)
            time.sleep(1.0)
            node = cluster.show(job)["gang"][1]["node"]
            victims = node_processes(cluster, job, node)
            start = time.monotonic()
            for pid in victims:
                os.kill(pid, signal.SIGKILL)
            last, _ = common.wait_stamps(folder, 4, known=set(pids))
            times.append(last - start)
            shutil.rmtree(folder)
    rows.row("L4", "node killed -> gang of 4 through MPI_Init elsewhere, default settings", times, "s", bar="<= 4 s (Slurm: 488 s, tuned 17 s; not rerun here)")


def node_processes(cluster, job, node):
    """Everything of one virtual node: its agent, execd, shepherds and ranks."""
    agents, marked, parents = set(), set(), {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().decode(errors="replace").split("\0")
            with open(f"/proc/{pid}/environ", "rb") as file:
                environment = file.read().decode(errors="replace")
            with open(f"/proc/{pid}/stat") as file:
                parents[pid] = int(file.read().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        if words[1:2] == ["agent"] and cluster.state in " ".join(words) and node in words:
            agents.add(pid)
        mark = environment.find("GANGLINE_MARK=")
        if mark >= 0 and f"/{node}/{job}." in environment[mark:].split("\0")[0] and cluster.state in environment:
            marked.add(pid)
    shepherds = {pid for rank in cluster.show(job)["rank_views"] if rank["node"] == node for pid in [parents.get(rank["pid"])] if pid}
    ranks = {rank["pid"] for rank in cluster.show(job)["rank_views"] if rank["node"] == node}
    children = {pid for pid, parent in parents.items() if parent in agents}
    grandchildren = {pid for pid, parent in parents.items() if parent in children}
    return list(agents | children | grandchildren | shepherds | ranks | marked)


def l5(rows, rounds):
    rates = []
    with common.Cluster(2, 2) as cluster:
        cluster.cli("drain", "n0")
        cluster.cli("drain", "n1")
        for _ in range(rounds):
            start = time.monotonic()
            cluster.cli("submit", "--parsable", "--repeat", "1000", "-o", "none", "--", "/bin/true")
            rates.append(1000 / (time.monotonic() - start))
    rows.row("L5", "1,000 submits pipelined by one client, durable", rates, "1/s", bar=">= 5000 (Slurm 1000, not rerun here)")


def l6(rows, rounds):
    ours, theirs = [], []
    with common.Cluster(2, 8) as cluster:
        for _ in range(rounds):
            start = time.monotonic()
            cluster.cli("submit", "--parsable", "--repeat", "1000", "-o", "none", "--", "/bin/true")
            until = start + 120
            while common.json.loads(cluster.cli("queue", "--json"))["jobs"]:
                if time.monotonic() > until:
                    raise RuntimeError("1,000 jobs did not end within 120 s")
                time.sleep(0.1)
            ours.append(1000 / (time.monotonic() - start))
    if not slurm.absent():
        base = tempfile.mkdtemp(prefix="gangline-slurm-")
        with slurm.Slurm(os.path.join(base, "slurm"), nodes=2) as peer:
            # A fifth of the jobs: Slurm needs half a minute for all of them.
            start = time.monotonic()
            peer.run("sbatch", "--parsable", "-a", "1-200", "-o", "/dev/null", "--wrap", "/bin/true", check=True)
            while peer.run("squeue", "-h").strip():
                if time.monotonic() > start + 60:
                    common.note("L6: Slurm did not end 200 jobs within 60 s: no peer")
                    break
                time.sleep(0.2)
            else:
                theirs.append(200 / (time.monotonic() - start))
        shutil.rmtree(base, ignore_errors=True)
    rows.row("L6", "1,000 jobs of one rank, /bin/true, submit to all done, 2 nodes", ours, "1/s", theirs or None, "Slurm, array of 200" if theirs else "Slurm absent", ">= 150/s")


def l7(rows, rounds):
    times = []
    with common.Cluster(2, 2) as cluster:
        cluster.cli("drain", "n0")
        cluster.cli("drain", "n1")
        for _ in range(10):
            cluster.cli("submit", "--parsable", "--repeat", "1000", "-o", "none", "--", "/bin/true")
        for _ in range(rounds):
            pid = cluster.pids()["coordinator"][0]
            os.kill(pid, signal.SIGKILL)
            start = time.monotonic()
            cluster.cli("up", "--nodes", "2", "--cards", "2")  # starts the missing part again
            cluster.cli("show", "9999", "--json")
            times.append(time.monotonic() - start)
    rows.row("L7", "coordinator kill -9 -> started by `up`, shows job 9,999 of 10,000 queued", times, "s", bar="<= 0.5 s (Slurm 1.07 s, not rerun here)")


def l8(rows, rounds):
    seconds = 10 if rounds >= 10 else 4
    with common.Cluster(2, 4) as cluster:
        time.sleep(2)
        for part, pids in sorted(cluster.pids().items()):
            pid = pids[0]
            before = cpu_seconds(pid)
            time.sleep(seconds)
            rows.row("L8", f"idle {part}: share of a core", [(cpu_seconds(pid) - before) / seconds], "1", bar="<= 0.01")
            rows.row("L8", f"idle {part}: resident memory", [resident_bytes(pid)], "B", bar="<= 41943040")


def cpu_seconds(pid):
    with open(f"/proc/{pid}/schedstat") as file:
        return sum(int(open(f"/proc/{pid}/task/{t}/schedstat").read().split()[0]) for t in os.listdir(f"/proc/{pid}/task")) / 1e9


def resident_bytes(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS"))


ALL = {"L1": (l1, 10), "L2": (l2, 10), "L3": (l3, 10), "L4": (l4, 5), "L5": (l5, 10), "L6": (l6, 4), "L7": (l7, 10), "L8": (l8, 10)}
QUICK = {"L1": 3, "L2": 3, "L3": 3, "L4": 1, "L5": 3, "L6": 1, "L7": 3, "L8": 3}


def run(rows, quick, only):
    for name, (measure, rounds) in ALL.items():
        if only and name not in only:
            continue
        measure(rows, QUICK[name] if quick else rounds)
