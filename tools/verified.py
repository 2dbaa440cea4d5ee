#!/usr/bin/env python3
"""The page of counts: what a run has tried takes the place of what an earlier one had tried of the same promise.

  verified.py COUNTS FOLDER COMMIT FAILURES [PART]

COUNTS has a line for each count a test told, after its last assertion: each of them held.
FOLDER gets VERIFIED.md for people and verified.json, from which the next run begins.
FAILURES has a line for each thing that failed; it is empty if the run held.
PART says what was run if that was not everything.

A whole run that held leaves only its own rows: what it did not try is tried by no test any more. One that failed marks
the rows it did not renew, for theirs may be the tests that failed.
"""

import collections
import datetime
import json
import os
import pathlib
import sys

HEAD = """# Verified

How often each promise was put to the test by `make verify`. A test tells its count after its last assertion, so what is
counted here held each time; one that fails ends the run with an error and renews no row. A row that a failed run did
not renew says so: it speaks of an earlier commit. A part that is verified alone (`ONLY="-p tarbet-store crash"
tools/verify`) renews its own rows; each says which commit it speaks of.

"""


def merge(before, tried, run, failures, part):
    """What is known after a run, from what was known before it."""
    known = {} if not failures and not part else {promise: dict(row) for promise, row in before["rows"].items()}
    if failures and not part:
        for row in known.values():
            row["missed"] = run["commit"]
    for promise, times in tried.items():
        known[promise] = {"tried": times, **run}
    # A part proves nothing about what failed elsewhere.
    elsewhere = [failure for failure in before["failed"] if part and failure["part"] != part]
    return {"rows": known, "failed": elsewhere + [{**run, "what": what, "part": part} for what in failures]}


def page(state):
    """What people read."""
    text = HEAD
    if state["failed"]:
        text += "**Not everything held.** These failed:\n\n"
        for failure in state["failed"]:
            part = f", in `{failure['part']}`" if failure["part"] else ""
            text += f"- `{failure['what']}` ({failure['commit']}, {failure['day']}{part})\n"
        text += "\n"
    text += "| promise | tried | failed | effort | commit | day |\n|---|---:|---:|---:|---|---|\n"
    for promise, row in sorted(state["rows"].items()):
        name = promise[0].upper() + promise[1:]
        failed = f"not renewed by the failed run of {row['missed']}" if "missed" in row else "0"
        text += f"| {name} | {row['tried']:,} | {failed} | {row['effort']} | {row['commit']} | {row['day']} |\n"
    return text


def load(kept):
    """What earlier runs left; those before failures were kept left only the rows."""
    known = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    return known if "rows" in known else {"rows": known, "failed": []}


def replace(path, text):
    """Whole or not at all: a page cut off would be taken for the truth."""
    part = path.with_suffix(path.suffix + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def main(counts, folder, commit, failures, part=""):
    tried = collections.Counter()
    for line in pathlib.Path(counts).read_text(encoding="utf-8").splitlines():
        count = json.loads(line)
        tried[count["promise"]] += count["tried"]
    failures = pathlib.Path(failures).read_text(encoding="utf-8").splitlines()
    if not tried and not failures:
        sys.exit("verified: no test has told how often it tried")
    kept = pathlib.Path(folder) / "verified.json"
    run = {"effort": int(os.environ.get("EFFORT", "1")), "commit": commit, "day": str(datetime.date.today())}
    state = merge(load(kept), tried, run, failures, part)
    replace(kept, json.dumps(state, indent=1, sort_keys=True) + "\n")
    replace(kept.with_name("VERIFIED.md"), page(state))


if __name__ == "__main__":
    main(*sys.argv[1:])
