"""./bench NAME [--quick] [--json] [--only L1,L3]"""

import argparse
import importlib
import sys

import common

NAMES = ["launch", "scheduler", "simulate", "checkpoint"]


def main():
    parser = argparse.ArgumentParser(prog="bench", description="Measures Gangline beside its peers; prints one row a figure.")
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--quick", action="store_true", help="few rounds: does it run at all?")
    parser.add_argument("--json", action="store_true", help="one JSON object a row")
    parser.add_argument("--only", default="", help="comma-separated ids, for example L1,L3")
    given = parser.parse_args()
    common.note(common.describe_machine())
    rows = common.Rows(given.json)
    only = {word for word in given.only.split(",") if word}
    importlib.import_module(given.name).run(rows, given.quick, only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
