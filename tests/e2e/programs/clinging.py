"""A rank that will not go: clinging.py FOLDER WAY exit|stay. Each process that it makes writes its pid as a file into FOLDER;
`ready` beside FOLDER says that all are there. Then the rank exits, or stays."""

import os
import signal
import sys
import time


def note(folder):
    open(os.path.join(folder, str(os.getpid())), "w").close()


def stay():
    while True:
        time.sleep(3600)


def fork(folder, what):
    if os.fork() == 0:
        what()
        note(folder)
        stay()


def double_fork(folder):
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            note(folder)
            stay()
        os._exit(0)
    os.waitpid(child, 0)


def without_environment(folder):
    """A daemon without the mark: only its descent, or its control group, tells whose it is."""
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            words = f"open('{folder}/' + str(__import__('os').getpid()), 'w').close(); __import__('time').sleep(3600)"
            os.execve(sys.executable, [sys.executable, "-c", words], {})
        os._exit(0)
    os.waitpid(child, 0)


def ignore_term():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


WAYS = {
    "child": lambda folder: fork(folder, lambda: None),
    "setsid": lambda folder: fork(folder, os.setsid),
    "double-fork": double_fork,
    "no-environment": without_environment,
    "ignore-term": lambda folder: fork(folder, ignore_term),
}


def main():
    folder, way, end = sys.argv[1:4]
    os.makedirs(folder, exist_ok=True)
    note(folder)
    ways = [WAYS[way]] if way != "many" else [make for make in WAYS.values() for _ in range(4)]
    if way in ("ignore-term", "many"):
        ignore_term()
    for make in ways:
        make(folder)
    while len(os.listdir(folder)) < len(ways) + 1:
        time.sleep(0.005)
    open(os.path.join(os.path.dirname(folder), "ready"), "w").close()
    if end == "stay":
        stay()


main()
