"""The user's own errors: one cause is shown, the right budget is charged, exit codes are the shell's; a request that can never run
is refused at once, with the clause that rules it out."""

import json
import re
import time

import pytest

from cluster import Cluster

# ---- the program fails

def test_exit_code_1_has_one_cause_with_rank_code_and_last_lines(cluster):
    job = cluster.submit("-n", 4, "-N", 2, "--", "sh", "-c", 'if [ $RANK = 2 ]; then echo reading data; echo "no such column: label" >&2; exit 1; fi; sleep 60')
    view = cluster.wait_state(job, "FAILED")
    assert view["exit_code"] == 1 and view["restarts"] == 0
    attempt = view["attempts"][0]
    assert attempt["kind"] == "USER" and attempt["rank"] == 2 and attempt["exit_code"] == 1
    assert "rank 2" in attempt["cause"] and "1" in attempt["cause"]
    assert "no such column: label" in attempt["last_lines"] and "reading data" in attempt["last_lines"]
    shown = cluster.cli("show", job).stdout
    assert "no such column: label" in shown and "rank 2" in shown


def test_retries_are_charged_to_the_user_and_then_used_up(cluster):
    script = 'echo start >> starts; n=$(wc -l < starts); exit $((10 + n))'
    job = cluster.submit("--retries", 2, "--", "sh", "-c", script)
    view = cluster.wait_state(job, "FAILED")
    assert view["restarts"] == 2 and view["exit_code"] == 13
    assert [attempt["exit_code"] for attempt in view["attempts"]] == [11, 12, 13]
    assert "retries" in view["attempts"][-1]["cause"] + view["reason"]


def test_a_retry_that_succeeds_completes_the_job(cluster):
    job = cluster.submit("--retries", 3, "--", "sh", "-c", 'echo start >> starts; [ $(wc -l < starts) = 2 ]')
    view = cluster.wait_completed(job)
    assert view["restarts"] == 1 and view["exit_code"] == 0 and view["attempts"][0]["kind"] == "USER"


def test_the_same_failure_twice_without_progress_is_a_crash_loop(cluster):
    job = cluster.submit("--retries", 50, "--", "sh", "-c", "exit 4")
    view = cluster.wait_state(job, "FAILED")
    assert view["restarts"] == 1 and view["exit_code"] == 4
    assert "crash loop" in view["attempts"][-1]["cause"], view["attempts"][-1]


def test_a_rank_killed_from_outside_costs_no_retry(cluster):
    job = cluster.submit("-n", 2, "--", "sh", "-c", '[ "$GANGLINE_ATTEMPT" = 1 ] && sleep 60; exit 0')
    cluster.wait_ranks(job)
    cluster.kill_rank(job, 1)
    view = cluster.wait_completed(job)
    assert view["restarts"] == 1 and view["attempts"][0]["kind"] == "INFRASTRUCTURE"


def test_infrastructure_failures_without_progress_back_off(cluster):
    job = cluster.submit("--", "sh", "-c", "[ $((GANGLINE_ATTEMPT % 2)) = 0 ] && kill -KILL $$; kill -TERM $$")  # alike would be a crash loop
    cluster.wait(job, "attempt 4", lambda view: view["attempt"] >= 4, 20)
    view = cluster.show(job)
    gaps = [after["reserved_unix_ms"] - before["gone_unix_ms"] for before, after in zip(view["attempts"], view["attempts"][1:])]
    cluster.cli("cancel", job)
    cluster.wait_state(job, "CANCELLED")
    assert gaps[2] > gaps[0] and gaps[2] >= 400, gaps


@pytest.mark.parametrize("ending,code", [("exit 0", 0), ("exit 1", 1), ("exit 77", 77), ("exit 255", 255), ("kill -SEGV $$", 139), ("kill -ABRT $$", 134)])
def test_run_has_the_exit_code_of_the_shell(cluster, ending, code):
    done = cluster.cli("run", "--", "sh", "-c", ending, code=code)
    assert code == 0 or "rank 0" in done.stderr


def test_run_tells_one_cause(cluster):
    done = cluster.cli("run", "-n", 4, "--", "sh", "-c", 'if [ $RANK = 3 ]; then echo "out of cheese" >&2; exit 5; fi; sleep 60', code=5)
    assert len(re.findall(r"rank \d", done.stderr)) >= 1 and "rank 3" in done.stderr and "5" in done.stderr
    assert not re.search(r"rank [012]\b", done.stderr), done.stderr


def test_a_missing_shared_library_or_interpreter_is_the_users_error(cluster):
    script = cluster.work / "broken"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    done = cluster.cli("run", "--", "./broken", code=None)
    assert done.returncode in (1, 2, 3, 126, 127), (done.returncode, done.stderr)
    assert "broken" in done.stderr


def test_a_time_limit_ends_the_job(cluster):
    job = cluster.submit("--time", "0:02", "--grace", "1", "--", "sh", "-c", "trap 'echo told in time; exit 0' TERM; sleep 60 & wait")
    begun = time.monotonic()
    view = cluster.wait_state(job, "TIMED_OUT", 10)
    assert 1.5 < time.monotonic() - begun < 8
    assert view["exit_code"] == 124
    assert "told in time" in cluster.logs(job)


def test_mpi_abort_names_the_rank(cluster):
    program = "from mpi4py import MPI; c = MPI.COMM_WORLD; c.Barrier(); (c.rank == 1) and c.Abort(6); c.Barrier()"
    job = cluster.submit("-n", 4, "-N", 2, "--", "/usr/bin/python3", "-c", program)
    view = cluster.wait_state(job, "FAILED")
    assert view["exit_code"] == 6 and view["attempts"][0]["rank"] == 1, view["attempts"][0]


# ---- requests that can never run

def refused(cluster, code, *words, says=()):
    done = cluster.cli(*words, code=code)
    assert done.stdout.strip() == "" or words[-1] == "--json", done.stdout
    for word in says:
        assert word in done.stderr, f"no <{word}> in: {done.stderr}"
    assert "Traceback" not in done.stderr and "terminate called" not in done.stderr
    return done.stderr


def test_too_many_ranks(cluster):
    refused(cluster, 3, "submit", "-n", 9, "--", "true", says=["9", "8"])
    refused(cluster, 3, "submit", "-n", 1, "--cards-per-rank", 5, "--", "true", says=["5", "4"])
    refused(cluster, 3, "submit", "-N", 3, "-n", 3, "--", "true", says=["3", "2"])
    refused(cluster, 3, "submit", "-w", "n7", "--", "true", says=["n7"])
    assert cluster.jobs() == []


@pytest.mark.parametrize("code,words,says", [
    (2, ["submit", "--ranky", "4", "--", "true"], ["--ranky"]),
    (2, ["submit", "--rank", "4", "--", "true"], ["--rank", "--ranks"]),
    (2, ["submit", "-n", "zero", "--", "true"], ["zero"]),
    (2, ["submit", "--ranks", "four", "--", "true"], ["--ranks", "four"]),
    (2, ["submit", "-n", "0", "--", "true"], ["0"]),
    (2, ["submit", "-n", "-3", "--", "true"], ["-3"]),
    (2, ["submit", "-n", "99999999999999999999", "--", "true"], ["99999999999999999999"]),
    (2, ["submit", "-t", "1:2:3:4", "--", "true"], ["1:2:3:4"]),
    (2, ["submit", "-t", "soon", "--", "true"], ["soon"]),
    (2, ["submit", "--mem", "4X", "--", "true"], ["4X"]),
    (2, ["submit", "nosuchscript.sh"], ["nosuchscript.sh"]),
    (2, ["submit", "."], ["."]),
    (2, ["submit"], ["submit"]),
    (2, ["submit", "--"], ["submit"]),
    (2, ["submit", "-D", "/no/such/folder", "--", "true"], ["/no/such/folder"]),
    (2, ["submit", "--", "nosuchprogram"], ["nosuchprogram"]),
    (2, ["submit", "--", "/no/such/program"], ["/no/such/program"]),
    (2, ["submit", "--", "/etc/passwd"], ["/etc/passwd"]),
    (2, ["submit", "--", "/tmp"], ["/tmp is a folder"]),
    (2, ["submit", "/tmp"], ["/tmp is a folder"]),
    (2, ["submit", "-o", "%Z", "-n", "x", "--", "true"], ["x"]),
    (2, ["submit", "--open-mode", "sideways", "--", "true"], ["sideways"]),
    (2, ["submit", "--progress-timeout", "-1", "--", "true"], ["-1"]),
    (2, ["submit", "-w", "n[3-", "--", "true"], ["n[3-"]),
    (2, ["show"], ["show"]),
    (2, ["cancel"], ["cancel"]),
    (2, ["show", "seven"], ["seven"]),
    (3, ["show", "4711"], ["4711"]),
    (3, ["cancel", "4711"], ["4711"]),
    (3, ["logs", "4711"], ["4711"]),
    (3, ["drain", "n9"], ["n9"]),
])
def test_bad_requests_are_refused_in_words(cluster_for_refusals, code, words, says):
    refused(cluster_for_refusals, code, *words, says=says)
    assert cluster_for_refusals.jobs() == []


@pytest.fixture(scope="module")
def cluster_for_refusals(tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("refusals") / "cluster")
    yield cluster
    trouble = cluster.take_down()
    assert not trouble, "\n".join(trouble)


def test_an_error_is_json_where_json_was_asked_for(cluster):
    done = cluster.cli("submit", "-n", 9, "--json", "--", "true", code=3)
    answer = json.loads(done.stdout or done.stderr)
    assert answer["schema"] == "gangline/1" and answer["error"]["exit_code"] == 3 and "8" in answer["error"]["message"]


def test_a_script_is_refused_with_file_and_line(cluster):
    (cluster.work / "job.sh").write_text("#!/bin/sh\n#SBATCH -n 2\n#SBATCH --time=tomorrow\ntrue\n")
    refused(cluster, 2, "submit", "job.sh", says=["job.sh", "3", "tomorrow"])


def test_unsupported_options_are_named_not_ignored_in_silence(cluster):
    done = cluster.cli("submit", "--parsable", "--partition", "gpu", "--mail-type", "END", "--", "true")
    assert "--partition" in done.stderr and "--mail-type" in done.stderr
    job = int(done.stdout)
    assert {option.split("=")[0] for option in cluster.show(job)["spec"]["unsupported"]} == {"--partition", "--mail-type"}
    cluster.wait_completed(job)


def test_test_only_starts_nothing(cluster):
    cluster.cli("submit", "--test-only", "-n", 8, "--", "true")
    refused(cluster, 3, "submit", "--test-only", "-n", 9, "--", "true", says=["9", "8"])
    assert cluster.jobs() == []


@pytest.mark.parametrize("words,says", [
    (["-N", 3], "3 nodes are asked for; 2 may be used. The largest that fits: --nodes 2\n"),
    (["-N", 3, "-n", 9], "The largest that fits: --nodes 2 --ranks 8\n"),
    (["-N", 1, "-n", 5], "5 ranks do not fit on any 1 of 2 nodes. The largest that fits: --ranks 4\n"),
    (["-w", "n0", "-n", 5], "5 ranks of 1 card need 5 cards; 1 node has 4."),
    (["--cards-per-rank", 5], "1 rank of 5 cards needs 5 cards on one node;"),
    (["--cpus-per-task", 60000], "--cpus-per-task: 1 rank of 60000 CPUs needs 60000 CPUs on one node;"),
    (["--mem", "1024T"], "--mem asks for 1048576 GiB a node;"),
])
def test_the_clause_names_the_option_and_counts_rightly(cluster_for_refusals, words, says):
    text = refused(cluster_for_refusals, 3, "submit", *words, "--", "true")
    assert says in text, text


def test_why_speaks_of_nodes_once_and_suggests_only_what_fills_them(cluster):
    first = cluster.submit("-n", 4, "-w", "n0", "--", "sleep", 60)
    cluster.wait_state(first, "RUNNING")
    text = cluster.cli("why", cluster.submit("-N", 2, "-n", 5, "--", "true")).stdout
    assert "on 2 nodes" in text and "or more" not in text and "at most" not in text, text
    assert "--ranks 1 would fit" not in text
    cluster.cli("cancel", first)


def test_a_python_file_without_an_interpreter_is_told_how_to_start(cluster):
    (cluster.work / "train.py").write_text("print('hello')\n")
    for words in (["train.py"], ["--", "train.py"], ["--", "./train.py"]):
        refused(cluster, 2, "run", *words, says=["-- python3 ", "train.py"])


def test_a_script_whose_interpreter_is_missing_here_is_taken_with_a_warning(cluster):
    (cluster.work / "job.sh").write_text("#!/no/such/bash -e\ntrue\n")
    done = cluster.cli("submit", "-H", "job.sh")
    assert "warning: job.sh line 1: the interpreter /no/such/bash is not on this machine" in done.stderr and "Submitted" in done.stdout
    (cluster.work / "env.sh").write_text("#!/usr/bin/env bash\ntrue\n")
    assert cluster.cli("submit", "-H", "env.sh").stderr == ""


def test_the_back_off_is_told_while_it_lasts(cluster):
    die = "[ $GANGLINE_ATTEMPT = 4 ] && exit 0; [ $GANGLINE_ATTEMPT = 2 ] && kill -KILL $$; kill -TERM $$"  # not twice alike: no crash loop
    done = cluster.cli("submit", "--wait", "--", "sh", "-c", die)
    assert re.search(r"job 1 waits: .*; next try in \d s\n", done.stderr) and "(restart 3)" in done.stderr, done.stderr
