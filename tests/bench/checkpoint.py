"""B1-B11, B13, B14: durable saves and restores beside the disk's own speed and beside others' writers. Each round measures all of them, one after the other."""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

import common

PROGRAM = os.path.join(common.BIN, "checkpoint_bench")
KEEPER = os.path.join(common.BIN, "keeper_bench")
TRAINING = os.path.join(common.BIN, "training_bench")
PEERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "checkpoint_peers.py")


def measure(*args, program=PROGRAM):
    out = subprocess.run([program, *map(str, args)], stdout=subprocess.PIPE, check=True, text=True).stdout
    return {row["what"]: row["values"] for row in map(json.loads, out.splitlines())}


def peers(folder, mib, warm):
    out = subprocess.run([sys.executable, PEERS, folder, str(mib), "warm" if warm else "fresh"], stdout=subprocess.PIPE, check=True, text=True).stdout
    return json.loads(out)


def gigabytes(values, size):
    return [size / value / 1e9 for value in values]


def run(rows, quick, only):
    mib, rounds = (128, 2) if quick else (2048, 5)
    size = mib << 20
    wants = lambda *ids: not only or any(id in only for id in ids)
    base = tempfile.mkdtemp(prefix="gangline-bench-", dir=os.environ.get("GANGLINE_BENCH_DISK", common.ROOT + "/build"))
    folder = os.path.join(base, "work")
    try:
        if wants("B1", "B1r", "B2", "B7"):
            for ranks in (1, 2, 4):
                seen = measure("save", folder, mib, ranks, rounds)
                raw = gigabytes(seen["raw"], size)
                rows.row("B1", f"durable save of {mib} MiB, {ranks} ranks", gigabytes(seen["fresh"], size), "GB/s", raw, "raw O_DIRECT", ">= 0.92 of raw")
                rows.row("B1r", "the same into recycled shards", gigabytes(seen["recycled"], size), "GB/s", raw, "raw, fresh file", ">= 1.5 x raw")
                rows.row("B2", "CPU of the save, copy and checksums with it", seen["cpu_s_per_gb"], "s/GB", bar="<= 0.15")
                rows.row("B2", "the same, copied before", seen["written_cpu_s_per_gb"], "s/GB", bar="<= 0.05")
        if wants("B4", "B6", "B10"):
            seen = measure("copy", 256 if quick else 1024, 2 * rounds)
            rows.row("B4", "stall of a blocking save of 1 GiB", seen["image"], "s", seen["copy"], "the copy alone, all cores", "<= 1.15 x")
            rows.row("B6", "copy with checksums", [1 / value for value in seen["copy_with_crc"]], "1/s", [1 / value for value in seen["copy"]], "without", ">= 0.85")
        if wants("B7"):
            for shards, bar in ((4, "<= 0.002"), (64, "<= 0.010")):
                rows.row("B7", f"last shard durable -> checkpoint durable, {shards} shards", measure("commit", folder, shards, 3 * rounds)["commit"], "s", bar=bar)
        if wants("B8", "B9"):
            seen = measure("restore", folder, mib, rounds)
            rate = lambda name: [value / 1e9 for value in seen[name]]
            rows.row("B8", f"cold restore of {mib} MiB, verified", rate("restore"), "GB/s", rate("raw_read"), "raw O_DIRECT read", ">= 0.90 of raw")
            rows.row("B8", "the same", rate("restore"), "GB/s", rate("h5_read"), "H5Dread", ">= 3 x")
            rows.row("B8", "its CPU", seen["restore_cpu"], "s", seen["h5_read_cpu"], "H5Dread", "<= 0.1")
            rows.row("B9", "4 -> 3 ranks, a byte", rate("from_4_to_3"), "GB/s", rate("same_4"), "4 -> 4", ">= 0.85")
            rows.row("B9", "3 -> 4 ranks, a byte", rate("from_3_to_4"), "GB/s", rate("same_3"), "3 -> 3", ">= 0.85")
        if wants("B10"):
            count = 2048 if quick else 32768
            seen = measure("small", folder, count, rounds)
            bytes_all = count * 10_004
            rows.row("B10", f"{count} tensors of 10 kB", gigabytes(seen["small"], bytes_all), "GB/s", gigabytes(seen["raw"], bytes_all), "raw", ">= 0.7 of raw")
            rows.row("B10", "the same", gigabytes(seen["small"], bytes_all), "GB/s", gigabytes(seen["h5_write"], bytes_all), "H5Dcreate + H5Dwrite", ">= 6 x")
            rows.row("B10", "layout after the first save", seen["prepare_again"], "s", bar="<= 0.005")
        if wants("B11", "B14"):
            mib_kept = 128 if quick else 1024
            seen = measure(mib_kept, 2 * rounds, program=KEEPER)
            rate = lambda name: gigabytes(seen[name], mib_kept << 20)
            rows.row("B11", f"restore of {mib_kept} MiB from the keeper's memory, verified", rate("restore"), "GB/s", rate("copy"), "memcpy, all cores", ">= 0.5 x")
            rows.row("B11", "the same from another node's keeper, over loopback", rate("restore_as_a_peer"), "GB/s", rate("tcp"), "TCP alone, one connection", ">= 0.8 x")
            rows.row("B14", "killed rank -> its state back, in a process that waits", seen["killed_to_restored"], "s", seen["copy"], "the copy alone, all cores", "<= 2 x")
        if wants("B4", "B5"):
            run_training(rows, folder, 256 if quick else 1024, rounds)
        if wants("B13"):
            saves = 20 if quick else 200
            seen = measure("memory", folder, 64 if quick else 256, saves, program=TRAINING)
            rows.row("B13", f"growth of memory over {saves} saves", seen["growth"], "bytes", bar="<= 1 MiB")
            rows.row("B13", "memory that saving takes, at most", seen["peak"], "bytes", seen["state"], "the state", "<= 1.05 x")
        if wants("B3"):
            run_peers(rows, folder, mib, rounds)
    finally:
        shutil.rmtree(base, ignore_errors=True)


# A step takes 1 s and keeps all cores busy.
def run_training(rows, folder, mib, rounds):
    for pages in ("small", "large"):
        seen = measure("steps", folder, mib, pages, rounds, program=TRAINING)
        least = [1.5 * seconds + 0.005 for seconds in seen["copy"]]
        where = f"{mib} MiB in {pages} pages"
        for way in ("lazy", "zero_copy"):
            rows.row("B4", f"stall of a fenced save amid training, {way}, {where}", seen["stall_" + way], "s", bar="<= 0.003")
        for way in ("blocking", "lazy", "zero_copy", "auto"):
            is_ours = way == "auto"  # what a program gets that asks for nothing
            rows.row("B5", f"longer steps a save, {way}, {where}", seen["extra_" + way], "s", least, "1.5 x the copy + 5 ms", "<= 1" if is_ours else "")
            rows.row("B5", "its processor time", seen["cpu_" + way], "s", seen["cpu_h5_write"], "copy, then H5Dwrite by a thread")
            if is_ours:
                rows.row("B5", "longer steps a save, auto", seen["extra_" + way], "s", seen["extra_h5_write"], "copy, then H5Dwrite by a thread", "<= 0.1")


# Ours has its memory from the save before, in both conditions; the others' pages come from the page cache.
def run_peers(rows, folder, mib, rounds):
    size = mib << 20
    for is_warm in (True, False):
        if not is_warm and not os.access("/proc/sys/vm/drop_caches", os.W_OK):
            rows.absent("B3", "durable save, memory as it comes", "only root may empty the page cache")
            continue
        ours, ours_cpu, first, others, others_cpu = [], [], [], {}, {}
        for _ in range(rounds):
            seen = measure("save", folder, mib, 1, 1)
            ours += gigabytes(seen["fresh"], size)
            first += gigabytes(seen["first"], size)
            ours_cpu += seen["cpu_s_per_gb"]
            os.makedirs(folder, exist_ok=True)
            for name, one in peers(folder, mib, is_warm).items():
                others.setdefault(name, []).append(size / one["seconds"] / 1e9)
                others_cpu.setdefault(name, []).append(one["cpu_s"] / size * 1e9)
            shutil.rmtree(folder, ignore_errors=True)
        best = max(others, key=lambda name: statistics.median(others[name]))
        how = "page cache warm" if is_warm else "memory as it comes"
        bar = ">= 1.4 x the best" if is_warm else ">= 4 x the best"
        for name, rates in others.items():
            rows.row("B3", f"durable save, {how}", ours, "GB/s", rates, name + (" (the best)" if name == best else ""), bar if name == best else "")
        for name, used in others_cpu.items():
            rows.row("B3", f"its CPU, {how}", ours_cpu, "s/GB", used, name, "<= 0.1")
        rows.row("B3", f"the first save of a process, layout and memory with it, {how}", first, "GB/s", others[best], best + " (the best)")
