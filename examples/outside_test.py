#!/usr/bin/env python3
"""The example without Gangline: under mpirun, twice the same weights; killed and started again, the same weights still; and with fewer ranks it goes on at the same place in the data.
Usage: outside_test.py PATH_OF_fashion_mnist [data folder]"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PROGRAM = os.path.abspath(sys.argv[1])
DATA = sys.argv[2] if len(sys.argv) > 2 else "/usr/share/datasets/fashion-mnist"


def command(folder, words, ranks=4):
    """Shared memory of a killed MPI run would stay behind in /dev/shm: it goes into the test's own folder."""
    return ["mpirun", "--oversubscribe", "--mca", "btl_vader_single_copy_mechanism", "none", "--mca", "btl_vader_backing_directory", str(folder),
            "--mca", "orte_tmpdir_base", str(folder), "-n", str(ranks), PROGRAM, "--data", DATA, *words]


ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
for name in [name for name in ENVIRONMENT if name.startswith(("GANGLINE_", "PMIX_", "SLURM_"))]:
    del ENVIRONMENT[name]


def run(folder, *words, ranks=4):
    done = subprocess.run(command(folder, words, ranks), cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def weights(output):
    return re.search(r"^weights sha256 ([0-9a-f]{64})$", output, re.M).group(1)


def published(folder):
    return sorted(path.name for path in (folder / "gangline-checkpoints").glob("step-*"))


def kill_after_checkpoints(folder, count, *words):
    """Starts a run and kills all of it with SIGKILL once that many checkpoints are published."""
    gang = subprocess.Popen(command(folder, words), cwd=folder, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                            start_new_session=True)
    deadline = time.monotonic() + 120
    while len(published(folder)) < count and gang.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert gang.poll() is None, "the run ended before it could be killed"
    ranks = subprocess.run(["ps", "-o", "pid=", "--ppid", str(gang.pid)], capture_output=True, text=True).stdout.split()
    for pid in [*map(int, ranks), gang.pid]:
        os.kill(pid, signal.SIGKILL)
    gang.wait(30)
    while any(pathlib.Path("/proc", pid).exists() for pid in ranks) and time.monotonic() < deadline:
        time.sleep(0.02)


def main():
    if shutil.which("mpirun") is None or not pathlib.Path(DATA).is_dir():
        print("SKIPPED: mpirun or the data set is not installed")
        return
    with tempfile.TemporaryDirectory(prefix="gangline-example-") as name:
        root = pathlib.Path(name)
        words = ["--steps", "60", "--batch", "256", "--checkpoint-every", "10"]
        for folder in ("first", "second", "killed"):
            (root / folder).mkdir()
        first = weights(run(root / "first", *words, "--weights-out", "weights"))
        assert (root / "first" / "weights").stat().st_size == 4 * 101770
        assert weights(run(root / "second", *words)) == first, "two runs differ"
        for count in (1, 2):
            kill_after_checkpoints(root / "killed", count, *words)
        output = run(root / "killed", *words)
        assert re.search(r"^resumed at step [1-5]0$", output, re.M), output
        assert weights(output) == first, "a killed run ends with other weights"
        for folder, ranks in (("killed", 3), ("killed", 4)):  # it checks by itself that no sample was lost or taken twice
            output = run(root / folder, "--steps", str(65 + 15 * (ranks - 3)), *words[2:], ranks=ranks)
            assert "resumed at step " in output, output
        accuracy = float(re.search(r"test accuracy ([0-9.]+) %", output).group(1))
        assert accuracy > 70, accuracy
        refused = subprocess.run([PROGRAM, "--steps", "0"], capture_output=True, text=True)
        assert refused.returncode == 2 and "--steps 0" in refused.stderr, refused
        print("the same weights three times:", first)


if __name__ == "__main__":
    main()
