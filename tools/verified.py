#!/usr/bin/env python3
"""The page of counts, from the lines that tests wrote: every one of them held, or the run had failed."""

import collections
import datetime
import json
import os
import platform
import subprocess
import sys

tried = collections.Counter()
with open(sys.argv[1], encoding="utf-8") as lines:
    for line in lines:
        count = json.loads(line)
        tried[count["promise"]] += count["tried"]

commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
print("# Verified\n")
print("How often each promise was put to the test by `make verify`, which fails if one does not hold.\n")
print(
    f"{datetime.date.today()}, commit {commit.stdout.strip()}, EFFORT={os.environ.get('EFFORT', '1')}, "
    f"{os.cpu_count()} cores, {platform.machine()}.\n"
)
if os.environ.get("ONLY"):
    print(f"Only a part: `cargo test {os.environ['ONLY']}`.\n")
if not tried:
    sys.exit("verified: no test has told how often it tried")
print("| promise | tried | failed |\n|---|---:|---:|")
for promise in sorted(tried):
    print(f"| {promise[0].upper()}{promise[1:]} | {tried[promise]:,} | 0 |")
