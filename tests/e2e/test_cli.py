"""The verbs over a fresh home: help of each, JSON, exit codes, keys, completion."""

import json
import os
import pty
import re
import stat
import subprocess

import pytest

from cluster import GANGLINE, ROOT
from processes import until

VERBS = ["run", "submit", "queue", "show", "logs", "cancel", "report", "why", "hold", "release", "up", "down", "nodes", "drain", "resume", "keys", "completion", "launch"]
DAEMONS = ["coordinator", "agent", "execd"]


def test_help_lists_every_verb(home):
    text = home.cli("--help").stdout
    for verb in VERBS:
        assert re.search(rf"\b{verb}\b", text), f"no {verb} in the help"
    assert home.cli("help").stdout == text


@pytest.mark.parametrize("verb", VERBS + DAEMONS)
def test_each_verb_explains_itself(home, verb):
    done = home.cli(verb, "--help")
    assert verb in done.stdout and len(done.stdout.splitlines()) >= 3, done.stdout
    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 160


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_examples(home, verb):
    assert "xample" in home.cli(verb, "--help").stdout


@pytest.mark.parametrize("words", [["no-such-verb"], ["quueue"], ["queue", "--no-such-option"], ["keys", "new"], ["run"], ["coordinator"],
                                   ["agent"], ["agent", "--no-such-option"], ["coordinator", "--state", "x", "--heartbeat-ms", "soon"]])
def test_wrong_usage_is_exit_code_2_in_words(home, words):
    done = home.cli(*words, code=2)
    assert done.stderr.strip() and done.stdout == "" and "terminate called" not in done.stderr


def test_only_a_near_name_is_suggested(home):
    assert "did you mean" not in home.cli("run", "--foo", "--", "true", code=2).stderr
    assert "did you mean --nodes?" in home.cli("run", "--nodez", "2", "--", "true", code=2).stderr


def test_a_variable_that_means_nothing_is_told_in_one_line(up):
    done = up.cli("submit", "-H", "--", "true", environment={"GANGLINE_TIEM": "5", "GANGLINE_FOO": "1"})
    assert done.stderr == "gangline: warning: no option of gangline, without effect: GANGLINE_FOO, GANGLINE_TIEM (did you mean GANGLINE_TIME?)\n"


def test_logs_refuse_what_is_not_there(up):
    job = up.cli("submit", "--parsable", "-n", 4, "--", "sh", "-c", "echo out $RANK; echo err $RANK >&2").stdout.strip()
    until("completed", lambda: json.loads(up.cli("show", job, "--json").stdout)["job"]["state"] == "COMPLETED", 20)
    assert "ranks 0 to 3" in up.cli("logs", "--rank", 77, job, code=3).stderr
    assert "only attempt 1" in up.cli("logs", "--attempt", 9, job, code=3).stderr
    lines = [json.loads(line) for line in up.cli("logs", "--json", job).stdout.splitlines()]
    assert sorted((line["rank"], line["stream"], line["text"]) for line in lines) == sorted(
        (rank, stream, f"{stream} {rank}") for rank in range(4) for stream in ("out", "err"))
    assert [json.loads(line)["rank"] for line in up.cli("logs", "--json", "--rank", 2, "--err", job).stdout.splitlines()] == [2]
    assert f"{up.work}/gangline-{job}.out" in up.cli("show", job).stdout


def test_faults_are_told_once_each_by_run_and_submit_wait(up):
    """Here the memory limit may be enforced or not; what is told is what `show` lists."""
    for words in (["run"], ["submit", "--wait"]):
        told = up.cli(*words, "--mem", "1G", "--", "sleep", "0.3").stderr
        faults = json.loads(up.cli("show", "@", "--json").stdout)["job"]["faults"]
        assert [line for line in told.splitlines() if "memory limit" in line] == ["gangline: " + fault for fault in faults]


def test_an_empty_queue_says_so_on_a_terminal(up):
    main, terminal = pty.openpty()
    done = subprocess.run([GANGLINE, "queue"], stdout=subprocess.PIPE, stderr=terminal, env=up.environment, cwd=up.work, timeout=20)
    os.close(terminal)
    assert done.returncode == 0 and b"no jobs (gangline queue -e shows ended ones)" in os.read(main, 4096)
    os.close(main)
    assert up.cli("queue").stderr == ""


def test_check_explains_itself_and_starts_nothing():
    done = subprocess.run([ROOT / "check", "--help"], capture_output=True, text=True, timeout=10)
    assert done.returncode == 0 and "usage: ./check" in done.stdout and done.stderr == ""


def test_a_held_job_says_how_to_let_it_go(up):
    runner = up.start("run", "--hold", "--", "true", stderr=subprocess.PIPE, text=True)
    assert re.search(r"job 1 is held by \S+: gangline release 1\n", runner.stderr.readline())
    up.cli("release", 1)
    assert runner.wait(20) == 0
    runner.stderr.close()


def test_a_misspelt_verb_has_its_nearest_name(home):
    assert "queue" in home.cli("quueue", code=2).stderr


def test_without_a_cluster_verbs_say_how_to_get_one(home):
    for verb in ("queue", "nodes"):
        done = home.cli(verb, code=4)
        assert "gangline up" in done.stderr or "--coordinator" in done.stderr, done.stderr
    answer = json.loads(home.cli("queue", "--json", code=4).stdout)
    assert answer["error"]["exit_code"] == 4


def test_version(home):
    assert re.search(r"\d+\.\d+", home.cli("version").stdout)
    assert home.cli("--version").stdout == home.cli("version").stdout


def test_keys_are_made_once_and_for_their_owner(home):
    done = home.cli("keys", "new", "alice", "--role", "operator")
    file = home.work / "alice.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    kind, name, role, key = done.stdout.split()
    assert (kind, name, role) == ("user", "alice", "operator") and len(key) == 40
    assert home.cli("keys", "public", "alice.key").stdout.strip() == key
    secret = file.read_text()
    assert home.cli("keys", "new", "alice", code=3).stderr
    assert file.read_text() == secret, "a key was overwritten"
    home.cli("keys", "new", "../escape", code=2)
    home.cli("keys", "new", "a", "--role", "king", code=2)


def test_bash_completion_is_bash(home):
    text = home.cli("completion", "bash").stdout
    done = subprocess.run(["bash", "-c", f"{text}\nCOMP_WORDS=(gangline que); COMP_CWORD=1; complete -p gangline"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def up(home):
    home.cli("up", "--nodes", 2, "--cards", 2)
    yield home
    home.cli("down")
    assert home.wait_nothing_left(3) == []


def test_the_verbs_of_a_first_hour(up):
    (up.work / "job.sh").write_text("#!/bin/bash\n#SBATCH --ntasks=2 --job-name=first\nsrun hostname\n")
    job = int(up.cli("submit", "--parsable", "job.sh").stdout)
    assert job == 1
    until("completed", lambda: json.loads(up.cli("show", "@", "--json").stdout)["job"]["state"] == "COMPLETED", 20)
    assert "first" in up.cli("queue", "--ended").stdout and "ompleted" in up.cli("show", 1).stdout
    assert len(up.cli("logs", 1).stdout.splitlines()) == 2
    for verb, key in (("show", "job"), ("report", "report"), ("why", "why")):
        answer = json.loads(up.cli(verb, 1, "--json").stdout)
        assert answer["schema"] == "gangline/1" and key in answer
    for verb, key in (("queue", "jobs"), ("nodes", "nodes")):
        answer = json.loads(up.cli(verb, "--json").stdout)
        assert answer["schema"] == "gangline/1" and isinstance(answer[key], list)
    answer = json.loads(up.cli("submit", "--json", "--", "true").stdout)
    assert answer["schema"] == "gangline/1" and answer["job"] == 2
    for words in (["report", 1], ["why", 1], ["nodes"], ["queue"]):
        assert up.cli(*words).stdout.strip()
    assert up.cli("submit", "--wait", "--", "sh", "-c", "exit 6", code=6)
    assert up.cli("run", "--", "sh", "-c", "echo here; exit 4", code=4).stdout == "here\n"


def test_numbers_in_json_are_numbers(up):
    up.cli("submit", "--", "true")
    job = json.loads(up.cli("show", 1, "--json").stdout)["job"]
    assert isinstance(job["id"], int) and isinstance(job["submitted_unix_ms"], int) and job["submitted_unix_ms"] > 1e12
    assert isinstance(job["state"], str) and isinstance(job["attempts"], list) and isinstance(job["faults"], list)


def test_directives_config_environment_and_command_line_in_their_order(up):
    (up.work / "job.sh").write_text("#!/bin/sh\n#GANG -J from-script --comment script\ntrue\n")
    (up.work / "gangline.conf").write_text("job-name = from-config\ncomment = config\npriority = 3\n")
    shape = {"GANGLINE_COMMENT": "environment", "GANGLINE_CONF": str(up.work / "gangline.conf")}

    def spec(*words):
        job = up.cli("submit", "--parsable", "-H", *words, environment=shape).stdout.strip()
        return json.loads(up.cli("show", job, "--json").stdout)["job"]["spec"]

    one = spec("job.sh")
    assert (one["name"], one["comment"], one["priority"]) == ("from-script", "script", 3)
    two = spec("-J", "from-line", "--", "true")
    assert (two["name"], two["comment"], two["priority"]) == ("from-line", "environment", 3)


def test_a_script_on_standard_input_and_wrap(up):
    assert up.cli("submit", "--wait", stdin="#!/bin/sh\n#SBATCH -n 2\nexit $((SLURM_NTASKS + 5))\n", code=7)
    assert up.cli("submit", "--wait", "--wrap", "exit 9", code=9)


def test_colour_only_on_a_terminal(up):
    up.cli("submit", "--wait", "--", "false", code=1)
    for words in (["queue", "--ended"], ["show", 1], ["nodes"], ["report", 1]):
        assert "\x1b" not in up.cli(*words).stdout


def test_the_program_is_one_file_with_a_short_name(home, tmp_path):
    link = tmp_path / "gl"
    link.symlink_to(GANGLINE)
    done = subprocess.run([str(link), "version"], capture_output=True, text=True, env=home.environment, timeout=10)
    assert done.returncode == 0 and done.stdout == home.cli("version").stdout
