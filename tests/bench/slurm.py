"""A private Slurm on this machine, as a peer: munged, slurmctld and several slurmd under one folder."""

import os
import shutil
import socket
import subprocess
import time

PROGRAMS = ["slurmctld", "slurmd", "munged", "srun", "sbatch", "sinfo", "squeue"]


def absent():
    """The programs that are missing; an empty list means that Slurm can be measured."""
    paths = os.environ["PATH"] + ":/usr/sbin:/sbin"
    return [p for p in PROGRAMS if shutil.which(p, path=paths) is None]


class Slurm:
    def __init__(self, folder, nodes=4, cpus=8):
        self.folder, self.nodes, self.processes = folder, nodes, []
        os.makedirs(folder, mode=0o755)
        host = socket.gethostname().split(".")[0]
        munge = f"{folder}/munge"
        os.makedirs(munge, mode=0o755)
        with open(f"{munge}/key", "wb") as key:
            key.write(os.urandom(128))
        os.chmod(f"{munge}/key", 0o400)
        self.socket = f"{munge}/socket"
        for sub in ("state", "log") + tuple(f"spool{i}" for i in range(nodes)):
            os.makedirs(f"{folder}/{sub}")
        lines = [
            "ClusterName=bench", f"SlurmctldHost={host}(127.0.0.1)", "SlurmctldPort=16817", "SlurmUser=root", "SlurmdUser=root",
            "AuthType=auth/munge", f"AuthInfo=socket={self.socket}", "CredType=cred/munge", "MpiDefault=none",
            f"StateSaveLocation={folder}/state", f"SlurmctldPidFile={folder}/ctld.pid", f"SlurmdPidFile={folder}/slurmd%n.pid",
            f"SlurmdSpoolDir={folder}/spool%n", f"SlurmctldLogFile={folder}/log/ctld", f"SlurmdLogFile={folder}/log/%n",
            "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "SwitchType=switch/none", "ReturnToService=2",
            "SchedulerType=sched/backfill", "SelectType=select/cons_tres", "SelectTypeParameters=CR_Core",
            "SlurmdParameters=config_overrides", "JobAcctGatherType=jobacct_gather/none", "AccountingStorageType=accounting_storage/none",
            "MaxJobCount=20000", "KillWait=1",
        ]
        for i in range(nodes):
            lines.append(f"NodeName=n{i} NodeHostname={host} NodeAddr=127.0.0.1 Port={17100 + i} CPUs={cpus} State=UNKNOWN")
        lines.append("PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
        self.conf = f"{folder}/slurm.conf"
        with open(self.conf, "w") as conf:
            conf.write("\n".join(lines).replace("spool%n", "spool_%n") + "\n")
        for i in range(nodes):
            os.rename(f"{folder}/spool{i}", f"{folder}/spool_n{i}")
        self.env = dict(os.environ, SLURM_CONF=self.conf, PATH=os.environ["PATH"] + ":/usr/sbin:/sbin")
        for name in list(self.env):
            if name.startswith("SLURM_") and name != "SLURM_CONF":
                del self.env[name]

    def _start(self, *command):
        log = open(f"{self.folder}/log/{os.path.basename(command[0])}.out", "ab")
        self.processes.append(subprocess.Popen(command, env=self.env, stdout=log, stderr=log))

    def __enter__(self):
        m = f"{self.folder}/munge"
        self._start("munged", "-F", "--force", f"--key-file={m}/key", f"--socket={self.socket}", f"--pid-file={m}/pid", f"--log-file={m}/log", f"--seed-file={m}/seed")
        self._wait(lambda: os.path.exists(self.socket), "munged's socket")
        self._start("slurmctld", "-D", "-i", "-f", self.conf)
        for i in range(self.nodes):
            self._start("slurmd", "-D", "-f", self.conf, "-N", f"n{i}")
        self._wait(lambda: self.run("sinfo", "-h", "-o", "%T %D").strip() == f"idle {self.nodes}", "idle nodes", 40)
        return self

    def _wait(self, ready, what, limit=10):
        until = time.monotonic() + limit
        while time.monotonic() < until:
            if ready():
                return
            time.sleep(0.1)
        raise RuntimeError(f"Slurm: no {what} after {limit} s; see {self.folder}/log")

    def run(self, *command, check=False):
        done = subprocess.run(command, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, cwd=self.folder)
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.terminate()
        for process in reversed(self.processes):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
