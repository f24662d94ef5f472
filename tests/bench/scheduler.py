"""S3-S5, S8 and `why`: the scheduler's own times, one core."""

import json
import os
import subprocess

import common

PROGRAM = os.path.join(common.BIN, "scheduler_bench")


def measure(*args):
    out = subprocess.run([PROGRAM, *map(str, args)], stdout=subprocess.PIPE, check=True, text=True).stdout
    return {row["what"]: row["values"] for row in map(json.loads, out.splitlines())}


def p99(values):
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]


def run(rows, quick, only):
    rounds = 5 if quick else 100
    if not only or "S3" in only:
        passes = measure("pass", 2048, 10000, rounds)["pass"]
        rows.row("S3", "one pass, 2,048 nodes x 8, 10,000 queued, all estimated", passes, "s", bar="median <= 0.050")
        rows.row("S3", "the same, p99", [p99(passes)], "s", bar="<= 0.100")
        rows.row("S3", "why, 10,000 queued", measure("why", 2048, 10000, rounds)["why"], "s", bar="<= 0.001")
    if not only or "S4" in only:
        place = measure("place", 2048, 512, 20 * rounds)
        rows.row("S4", "place one 512-card gang on 2,048 nodes", place["place"], "s", place["scan"], "reading each node's free cards", "<= 0.001")
    if not only or "S5" in only:
        batches = measure("events", 1000 if quick else 10000, 10000 if quick else 100000, 1 if quick else 15)["batch"]
        rows.row("S5", "longest pass, 1 % of 100,000 queued change a second, 10,000 nodes", [max(batches)], "s", bar="<= 0.250")
        rows.row("S5", "median pass of the same", batches, "s")
    if not only or "fragments" in only:
        fragments = measure("fragments", 64 if quick else 256, 5 if quick else 40)
        rows.row("frag", "nodes in use by parts of nodes, of the fewest possible, 60 % of cards used", fragments["ours"], "x", fragments["first_fit"], "the first node with room")
        rows.row("frag", "the same, --placement spread", fragments["spread"], "x")
    if not only or "S8" in only:
        memory = measure("memory", 20000)
        rows.row("S8", "memory of a queued job beyond its text", memory["bytes_a_job"], "B", memory["text_a_job"], "its text", "<= 1024")
