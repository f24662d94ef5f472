#!/usr/bin/env python3
"""The house rules that a compiler does not check: arrows between folders, file sizes, banned calls in the brains,
sources that no target compiles, leftovers. Usage: tidy_test.py SOURCE_FOLDER BUILD_FOLDER"""

import json
import pathlib
import re
import subprocess
import sys

# folder -> folders that its files may include from (itself always). The longest matching prefix counts.
ARROWS = {
    "base": [],
    "base/wire": ["base"],
    "kernels": ["base"],
    "checkpoint": ["base", "kernels"],
    "checkpoint/tool": ["base", "checkpoint"],
    "health": ["base", "kernels"],
    "coordinator/schedule": ["base"],
    "coordinator/brain": ["base", "coordinator/schedule"],
    "coordinator/store": ["base"],
    "coordinator/server": ["base", "coordinator/brain", "coordinator/schedule", "coordinator/store", "coordinator/web"],
    "coordinator/web": ["base", "coordinator/brain"],
    "coordinator/simulate": ["base", "coordinator/brain", "coordinator/schedule", "runner/agent", "checkpoint", "health"],
    "runner/agent": ["base"],
    "runner/execd": ["base", "runner/shepherd"],
    "runner/shepherd": ["base"],
    "runner/worker": ["base", "checkpoint", "kernels"],
    "runner/cli": ["base", "runner/shepherd"],
    "": None,  # main.cpp, examples, tests: everything
}
# What each of these libraries' folders must never include, wherever it stands.
FOREIGN = {
    "runner/agent": ["pmix", "hdf5", "sqlite3"],
    "coordinator": ["pmix", "hdf5"],
    "runner/execd": ["zmq", "hdf5"],
    "runner/worker": ["zmq", "google/protobuf", "pmix"],
    "checkpoint": ["zmq", "google/protobuf", "pmix"],
}
BRAINS = ["coordinator/brain/", "coordinator/schedule/", "runner/agent/agent_brain", "checkpoint/committer"]
BANNED_IN_BRAINS = re.compile(r"\b(now\(\)|rand\s*\(|sleep\w*\s*\(|getenv\s*\(|std::thread|std::random_device|::open\s*\(|::socket\s*\()")
MOST_LINES = 600
LEFTOVERS = re.compile(r"\b(FIXME|TODO|XXX)\b")
CODE = {".h", ".cpp", ".c", ".hpp", ".cu", ".cuh", ".py", ".sh", ".js"}


def home_of(path):
    return max((f for f in ARROWS if f == "" or path.startswith(f + "/")), key=len)


def problems(source, build):
    listed = subprocess.run(["git", "-C", source, "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True)
    files = [f for f in listed.stdout.split("\n") if f and (source / f).is_file()]
    if not files:  # an exported tree without git
        files = [str(p.relative_to(source)) for p in source.rglob("*") if p.is_file() and "build" not in p.parts]
    compiled = {str(pathlib.Path(e["file"]).resolve()) for e in json.loads((build / "compile_commands.json").read_text())}
    for name in files:
        path = source / name
        if path.suffix not in CODE:
            continue
        lines = path.read_text(errors="replace").splitlines()
        if len(lines) > MOST_LINES:
            yield f"{name}: {len(lines)} lines, more than {MOST_LINES}"
        home = home_of(name)
        for number, line in enumerate(lines, 1):
            where = f"{name}:{number}"
            if LEFTOVERS.search(line) and "tests/tidy" not in name:
                yield f"{where}: leftover: {line.strip()}"
            if path.suffix in {".h", ".cpp"}:
                if any(name.startswith(b) for b in BRAINS) and not name.endswith("_test.cpp") and BANNED_IN_BRAINS.search(line.split("//")[0]):
                    yield f"{where}: a brain has no clock, randomness, environment or I/O: {line.strip()}"
                include = re.match(r'\s*#include\s+["<]([^">]+)[">]', line)
                if include and not name.endswith("_test.cpp"):
                    target = include.group(1)
                    if ARROWS[home] is not None and (source / target.split("/")[0]).is_dir() and "/" in target:
                        there = home_of(target)
                        if there != home and there not in ARROWS[home] and not (there == "base" or there == "base/wire"):
                            yield f"{where}: {home} may not include from {there or 'the top'}"
                    for folder, words in FOREIGN.items():
                        if name.startswith(folder + "/") and any(w in target for w in words):
                            yield f"{where}: {folder} must not know {target}"
        if path.suffix == ".cpp" and not name.endswith("_fuzz.cpp") and str(path.resolve()) not in compiled:
            yield f"{name}: no target compiles it"


def main():
    source, build = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
    found = list(problems(source, build))
    print("\n".join(found) or "tidy")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
