"""S1, S2, S6, S7: replays by `gangline simulate`, each with its machine time. The traces are not part of this tree: GANGLINE_DATA names their folder."""

import json
import os
import subprocess
import time

import common

DATA = os.environ.get("GANGLINE_DATA", "")
CAUSES = os.path.join(DATA, "failures/llama3.csv")
REPAIRS = os.path.join(DATA, "traces/stepfun/fault_trace.csv")


def simulate(*args):
    start = time.monotonic()
    out = subprocess.run([common.GANGLINE, "simulate", *map(str, args), "--json"], stdout=subprocess.PIPE, check=True, text=True).stdout
    return json.loads(out)["series"], time.monotonic() - start


def training(rows, id, what, nodes, spares, days, faults, every, seeds, bar):
    series, spent = simulate("--train", nodes, "--spares", spares, "--days", days, "--faults", faults, "--causes", CAUSES, "--repairs", REPAIRS,
                             "--lemons", "0.05:0.24", "--elastic", "--snapshot-every", every, "--seeds", seeds)
    one = series[0]
    rows.row(id, f"{what}: ETT, mean", [one["ett"]["mean"]], "", bar=bar)
    rows.row(id, f"{what}: ETT, 5 % of seeds below", [one["ett"]["p5"]], "")
    rows.row(id, f"{what}: longest unproductive stretch, 95 % of seeds below", [one["worst_stretch_s"]["p95"]], "s", bar="<= 600")
    return spent / seeds


def compare(rows, trace, nodes, seeds):
    series, spent = simulate("--trace", os.path.join(DATA, "traces", trace), "--nodes", nodes, "--compare", "fifo,easy,bestfit,gangline", "--seeds", seeds)
    ours = series[-1]
    for other in series[:-1]:
        rows.row("S7", f"{trace}, {nodes} nodes: mean wait", [ours["mean_wait_s"]["mean"]], "s", [other["mean_wait_s"]["mean"]], other["policy"], "<= 1")
        rows.row("S7", f"{trace}, {nodes} nodes: cards held", [ours["allocated"]["mean"]], "", [other["allocated"]["mean"]], other["policy"], ">= 1")
    return spent / seeds / len(series)


def run(rows, quick, only):
    if not os.path.exists(CAUSES):
        for id in ("S1", "S2", "S6", "S7"):
            rows.absent(id, "replays", "set GANGLINE_DATA to a folder with traces/ and failures/")
        return
    seeds = 2 if quick else 40
    if not only or {"S1", "S6"} & only:
        spent = training(rows, "S1", "2,048 nodes, 54 days, 3 % spares", 2048, 62, 54, 4.214, 60, seeds, ">= 0.980")
        rows.row("S6", "machine time of one 54-day replay", [spent], "s", bar="<= 20")
    if not only or "S2" in only:
        training(rows, "S2", "16,384 cards at RSC-1's rate, 54 days", 2048, 62, 54, 6.5, 60, seeds, ">= 0.970")
        training(rows, "S2", "100,000 cards, a fault each 18 min, 14 days", 12500, 375, 14, 6.4, 30, max(2, seeds // 8), ">= 0.900")
    if not only or {"S6", "S7"} & only:
        spent = compare(rows, "philly/philly_2017-10-16_14d.csv", 92, 1 if quick else 5)
        rows.row("S6", "machine time of 14 days of Philly, 21,933 jobs", [spent], "s", bar="<= 60")
        for trace, nodes in (("elasticflow/raw_cluster03.csv", 32), ("elasticflow/raw_cluster06.csv", 32)):
            compare(rows, trace, nodes, 1 if quick else 5)
