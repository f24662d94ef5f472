"""`gangline run` with a cluster of its own: output, exit codes, and nothing left behind however it ends."""

import os
import shlex
import signal
import subprocess
import time

import pytest

from processes import Process, until
from trainer import steady

BIG_LINES = 800_000  # of 64 bytes: 51 MB a rank


def state_is_empty(home):
    """No folder of a run: what is known of the machine may stay."""
    return not home.state.is_dir() or not [name for name in os.listdir(home.state) if os.path.isdir(home.state / name)]


def test_it_leaves_nothing_behind(home):
    done = home.cli("run", "--ranks", 4, "--virtual-nodes", 2, "--", "sh", "-c", "echo $RANK $GANGLINE_NODE")
    assert sorted(done.stdout.splitlines()) == ["0 n0", "1 n0", "2 n1", "3 n1"] and done.stderr == ""
    assert home.wait_nothing_left(2) == []
    assert state_is_empty(home)


def test_test_only_runs_nothing(home):
    done = home.cli("run", "--test-only", "--ranks", 2, "--", "touch", "ran")
    assert done.stdout == "" and "would start now on n0" in done.stderr
    assert not (home.work / "ran").exists() and state_is_empty(home)
    done = home.cli("run", "--test-only", "--ranks", 2, "--virtual-nodes", 1, "--cards", 1, "--", "touch", "ran", code=3)
    assert "2 cards" in done.stderr and state_is_empty(home)


def test_a_held_job_on_its_own_cluster_can_be_released(home):
    runner = home.start("run", "--hold", "--", "true", stderr=subprocess.PIPE, text=True)
    words = shlex.split(runner.stderr.readline().split(": gangline ")[1])
    assert words[:2] == ["release", "1"]
    home.cli(*words)
    assert runner.wait(20) == 0
    runner.stderr.close()


def test_cards_asked_for_without_a_gpu_are_virtual_in_words(home):
    done = home.cli("run", "--gpus", 2, "--ranks", 2, "--", "true")
    assert done.stderr == ("" if os.path.exists("/dev/nvidia0") else "gangline: no GPU here: 2 virtual cards (CPU shares)\n")


def test_checkpoints_that_go_with_the_cluster_are_told(home, tmp_path):
    train = steady("--steps", 20, "--step-ms", 0, "--every", 10)
    told = "--checkpoint-dir DIR keeps them"
    assert told in home.cli("run", *train).stderr
    assert told not in home.cli("run", "--checkpoint-dir", tmp_path / "kept", *train).stderr
    assert os.listdir(tmp_path / "kept")


def test_standard_output_and_error_stay_apart(home):
    done = home.cli("run", "--ranks", 2, "--", "sh", "-c", "echo out $RANK; echo err $RANK >&2")
    assert sorted(done.stdout.splitlines()) == ["out 0", "out 1"]
    assert sorted(done.stderr.splitlines()) == ["err 0", "err 1"]


def test_labels_begin_each_line(home):
    done = home.cli("run", "--ranks", 3, "--label", "--", "sh", "-c", "printf 'a\\nb\\nno newline'")
    assert sorted(done.stdout.splitlines()) == sorted(f"{rank}: {line}" for rank in range(3) for line in ("a", "b", "no newline"))


def test_bytes_come_out_as_they_went_in(home):
    done = home.cli("run", "--", "/usr/bin/python3", "-c", "import sys; sys.stdout.buffer.write(bytes(range(256)) * 4096)", text=False)
    assert done.stdout == bytes(range(256)) * 4096


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_however_it_ends_its_cluster_ends_with_it(home, number):
    runner = home.start("run", "--ranks", 4, "--virtual-nodes", 2, "--grace", "500ms", "--", "sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done",
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(4):
        assert runner.stdout.readline() == "up\n"
    runner.send_signal(number)
    assert runner.wait(20) == {signal.SIGKILL: -9, signal.SIGTERM: 130, signal.SIGINT: 130}[number]
    assert number == signal.SIGKILL or runner.stderr.read().endswith("gangline: job 1 cancelled\n")
    runner.stdout.close()
    runner.stderr.close()
    assert home.wait_nothing_left(10) == []
    home.cli("run", "--", "true")  # sweeps the folder that a killed one left
    assert state_is_empty(home)


def test_a_killed_private_coordinator_is_told_and_all_is_taken_down(home):
    runner = home.start("run", "--ranks", 2, "--", "sh", "-c", "echo up; sleep 300", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert [runner.stdout.readline() for _ in range(2)] == ["up\n"] * 2
    coordinators = [pid for pid in home.processes() if b"coordinator" in open(f"/proc/{pid}/cmdline", "rb").read().split(b"\0")]
    assert len(coordinators) == 1
    Process(coordinators[0]).kill()
    out, err = runner.communicate(timeout=30)
    assert runner.returncode != 0 and "coordinator" in err, err
    assert home.wait_nothing_left(10) == []


def test_two_at_once_do_not_meet(home):
    both = [home.start("run", "--ranks", 2, "--", "sh", "-c", f"sleep 0.3; echo {name} $RANK", stdout=subprocess.PIPE, text=True) for name in "ab"]
    for name, runner in zip("ab", both):
        out, _ = runner.communicate(timeout=30)
        assert runner.returncode == 0 and sorted(out.splitlines()) == [f"{name} 0", f"{name} 1"]
    assert home.wait_nothing_left(2) == []
    assert state_is_empty(home)


@pytest.mark.long
def test_large_output_is_complete_and_in_order(home, tmp_path):
    """51 MB from each of two ranks: more than any pipe or buffer holds."""
    program = f"import os, sys\nrank = os.environ['RANK']\nfor i in range({BIG_LINES}): sys.stdout.write(f'{{rank}} {{i:060d}}\\n')"
    with open(tmp_path / "out", "wb") as out:
        runner = home.start("run", "--ranks", 2, "--", "/usr/bin/python3", "-c", program, stdout=out)
        assert runner.wait(120) == 0
    following = [0, 0]
    with open(tmp_path / "out") as lines:
        for line in lines:
            rank, number = line.split()
            assert int(number) == following[int(rank)], f"rank {rank}: {number} instead of {following[int(rank)]}"
            following[int(rank)] += 1
    assert following == [BIG_LINES] * 2
    (tmp_path / "out").unlink()


def test_a_slow_reader_holds_nothing_up_and_loses_nothing(home):
    """The reader sleeps, then reads: the ranks must be able to end meanwhile."""
    runner = home.start("run", "--", "sh", "-c", "seq 1 300000; : > ended", stdout=subprocess.PIPE, text=True)
    until("the rank ends", lambda: (home.work / "ended").exists(), 20)
    time.sleep(0.5)
    out, _ = runner.communicate(timeout=30)
    assert out.split() == [str(i) for i in range(1, 300001)]


def test_a_reader_that_closes_hurts_no_rank(home):
    """As `gangline run ... | head -1`: the job goes on to its end, and run with it."""
    runner = home.start("run", "--", "sh", "-c", "seq 1 200000; echo ended > ended", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert runner.stdout.readline() == "1\n"
    runner.stdout.close()
    runner.wait(30)
    runner.stderr.close()
    assert (home.work / "ended").exists()
    assert home.wait_nothing_left(10) == []


def test_mpi_on_its_own_cluster(home):
    done = home.cli("run", "--ranks", 4, "--virtual-nodes", 2, "--", "/usr/bin/python3", "-m", "mpi4py.bench", "helloworld")
    assert len([line for line in done.stdout.splitlines() if " of 4" in line]) == 4, done.stdout + done.stderr


def test_a_program_that_is_not_there_starts_no_cluster(home):
    done = home.cli("run", "--", "nosuchprogram", code=2)
    assert "nosuchprogram" in done.stderr
    assert state_is_empty(home)


def test_up_twice_down_twice(home):
    home.cli("up", "--nodes", 3, "--cards", 4)
    try:
        home.cli("up")
        nodes = home.cli("nodes").stdout
        assert [line.split()[:2] for line in nodes.splitlines()[1:]] == [["n0", "idle"], ["n1", "idle"], ["n2", "idle"]], nodes
        job = home.cli("submit", "--parsable", "-n", 12, "--", "sleep", "100").stdout.strip()
        assert "refused" not in home.cli("show", job).stdout
    finally:
        home.cli("down")
    assert home.wait_nothing_left(2) == []
    home.cli("down")
    home.cli("queue", code=4)
