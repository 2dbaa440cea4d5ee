#!/usr/bin/env python3
"""The page of counts: what a run has tried takes the place of what an earlier one had tried of the same promise.

  verified.py COUNTS FOLDER COMMIT

COUNTS has a line for each count a test told, after its last assertion: each of them held.
FOLDER gets VERIFIED.md for people and verified.json, from which the next run begins.
"""

import collections
import datetime
import json
import os
import pathlib
import sys

counts, folder, commit = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
tried = collections.Counter()
for line in counts.read_text(encoding="utf-8").splitlines():
    count = json.loads(line)
    tried[count["promise"]] += count["tried"]
if not tried:
    sys.exit("verified: no test has told how often it tried")

kept = folder / "verified.json"
known = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
for promise, times in tried.items():
    known[promise] = {
        "tried": times,
        "effort": int(os.environ.get("EFFORT", "1")),
        "commit": commit,
        "day": str(datetime.date.today()),
    }

page = """# Verified

How often each promise was put to the test by `make verify`. A test tells its count after its last assertion, so what is
counted here held each time; one that fails ends the run with an error and renews no row. A part that is verified
alone (`ONLY="-p tarbet-store crash" tools/verify`) renews its own rows; each says which commit it speaks of.

| promise | tried | failed | effort | commit | day |
|---|---:|---:|---:|---|---|
"""
for promise, row in sorted(known.items()):
    name = promise[0].upper() + promise[1:]
    page += f"| {name} | {row['tried']:,} | 0 | {row['effort']} | {row['commit']} | {row['day']} |\n"


def replace(path, text):
    """Whole or not at all: a page cut off would be taken for the truth."""
    part = path.with_suffix(path.suffix + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


replace(kept, json.dumps(known, indent=1, sort_keys=True) + "\n")
replace(folder / "VERIFIED.md", page)
