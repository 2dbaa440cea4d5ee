"""Turns what valgrind noted of each role into an order for the linker.

The argument is a folder with `trace.PID` files of callgrind and the program `named`, with its symbols.
Functions that the same roles run stand together, and neighbouring groups differ by one role where that
can be, so that what one role runs lies in few pieces.
"""

import collections
import pathlib
import re
import subprocess
import sys

# The ones whose memory is counted most closely come first: they stay in the fewest pieces.
ROLES = ["gateway", "agent", "jobs", "node", "mesh", "nets", "interlink", "cloud", "tags"]


def called(folder):
    """The names of the functions that each role called."""
    roles = collections.defaultdict(set)
    for trace in folder.glob("trace.*"):
        role = None
        for line in trace.open(errors="replace"):
            if line.startswith("cmd:"):
                role = line.split()[2]
            elif name := re.match(r"c?fn=\(\d+\) (\S+)", line):
                # Callgrind counts levels of recursion as functions of their own.
                roles[role].add(re.sub(r"'\d+$", "", name[1]))
    return roles


def known(program):
    """The functions of the program, which the linker can move."""
    listing = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout
    lines = (line.split() for line in listing.splitlines())
    return {line[2] for line in lines if len(line) == 3 and line[1] in "tTwW"}


def place(bits):
    """The place of a set of roles among all sets, each of which differs from the next by one role."""
    shift = 1
    while bits >> shift:
        bits ^= bits >> shift
        shift *= 2
    return bits


def main():
    folder = pathlib.Path(sys.argv[1])
    roles = called(folder)
    found = known(folder / "named")
    places = {}
    for name in set().union(*roles.values()) & found:
        bits = sum(1 << (len(ROLES) - at) for at, role in enumerate(ROLES, 1) if name in roles[role])
        # What only other roles run comes last.
        places[name] = place(bits) or 1 << len(ROLES)
    print("\n".join(sorted(places, key=lambda name: (places[name], name))))


main()
