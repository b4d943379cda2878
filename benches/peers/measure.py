"""Measures all programs in turn, as often as time allows, and writes the report.

Each round measures every size of every world with every program once, one right after the other, so
that what else the machine does meets all of them alike; ratios are taken within a round, and the
median over the rounds is what counts.
"""

import argparse
import datetime
import itertools
import os
import pathlib
import platform
import re
import subprocess
import sys
import time

import programs
import report

KIB, MIB = 1 << 10, 1 << 20
SIZES = {
    2: [4, 256, 4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB],
    4: [4, 4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB],
}
SIZES_QUICK = {2: [4, 4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB], 4: [4, 64 * KIB, 16 * MIB]}

# A program that fails this often in a row for a world is not asked again.
FAILURES_MAX = 2

WARMUP = 5


def first_match(pattern, text):
    found = re.search(pattern, text, re.MULTILINE)
    return found.group(1).strip() if found else ""


def cache_bytes():
    """The largest cache of a core, 0 if the system does not tell."""
    largest = 0
    for file in pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        number, unit = re.match(r"(\d+)([KM]?)", file.read_text()).groups()
        largest = max(largest, int(number) * {"": 1, "K": KIB, "M": MIB}[unit])
    return largest


def machine():
    memory = first_match(r"MemTotal:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text())
    return {
        "cpu": first_match(r"model name\s*:(.*)", pathlib.Path("/proc/cpuinfo").read_text()),
        "cores": len(os.sched_getaffinity(0)),
        "cache_mib": cache_bytes() // MIB,
        "memory_gib": round(int(memory) / MIB, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "load_at_start": os.getloadavg()[0],
    }


def output_of(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return "missing"
    return done.stdout.strip()


def versions(peers, release):
    def installed(name):
        file = peers / name / ".complete"
        return file.read_text().strip() if file.exists() else "missing"

    return {
        "bonfire": output_of(str(release / "bonfire"), "--version"),
        "commit": output_of("git", "describe", "--always", "--dirty"),
        "Open MPI": installed("openmpi"),
        "MPICH": installed("mpich"),
        "torch (gloo)": installed("torch"),
        "burn-collective": "0.21.0",
        "rustc": output_of("rustc", "--version"),
    }


def task(ranks, size, quick):
    """How a size is measured: with buffers of twice the cache in all, each used once in a round.

    Large buffers were all used once before, as those of a training step are: the first use of memory
    that another process made costs page tables."""
    rotate = max(384 * MIB, 2 * cache_bytes()) // ranks
    # More ranks than cores take long to wait for one another where they do not sleep.
    few = quick or ranks > len(os.sched_getaffinity(0))
    samples = min(max(rotate // size, 5), 40 if few else 200 if size < MIB else 480)
    warmup = WARMUP if size < MIB else max(WARMUP, rotate // size)
    return programs.Task(ranks, size, samples, warmup, rotate)


class Session:
    def __init__(self, arguments):
        everything = programs.programs(arguments.peers, arguments.release)
        self.quick = arguments.quick
        self.missing = [program.name for program in everything if program.missing()]
        self.programs = [program for program in everything if not program.missing()]
        self.deadline = time.monotonic() + 60 * arguments.minutes
        self.failures = {}
        self.rows = []

    def run(self):
        for name in self.missing:
            print(f"missing: {name}", flush=True)
        started = time.monotonic()
        for number in itertools.count():
            self.round(number)
            # The next round may take as long as the longest one so far.
            per_round = (time.monotonic() - started) / (number + 1)
            if self.quick or time.monotonic() + per_round > self.deadline:
                return number + 1

    def round(self, number):
        for ranks, sizes in (SIZES_QUICK if self.quick else SIZES).items():
            for size in sizes:
                for program in self.programs:
                    self.measure(number, program, task(ranks, size, self.quick))

    def measure(self, number, program, this):
        key = (program.name, this.ranks)
        if not program.takes_part(this) or self.failures.get(key, 0) >= FAILURES_MAX:
            return
        if time.monotonic() > self.deadline:
            return
        row = {
            "round": number,
            "program": program.name,
            "ranks": this.ranks,
            "size_bytes": this.size,
            "samples": this.samples,
            "rotate_bytes": this.rotate,
        }
        try:
            result = program.measure(this)
            self.failures[key] = 0
            for name in ("time_us", "min_us", "mean_us", "batch", "wrong"):
                if name in result:
                    row[name] = result[name]
            said = f"{row['time_us']:12.2f} us"
        except programs.Failed as failure:
            # What hangs once costs too much time to be asked again.
            hung = isinstance(failure, programs.TimedOut)
            self.failures[key] = FAILURES_MAX if hung else self.failures.get(key, 0) + 1
            row["error"] = said = str(failure)
        self.rows.append(row)
        print(
            f"round {number + 1}  n={this.ranks}  {report.size_text(this.size):>8}  "
            f"{program.name:<22} {said}",
            flush=True,
        )


def parse():
    parser = argparse.ArgumentParser(prog="benches/peers/run")
    parser.add_argument("--quick", action="store_true", help="one round of fewer sizes")
    parser.add_argument(
        "--minutes", type=float, default=11, help="measure no longer than this"
    )
    parser.add_argument("--output", type=pathlib.Path, help="folder for the report")
    parser.add_argument("--peers", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--release", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    arguments = parse()
    # A quick run is no result to keep.
    output = arguments.output or (
        arguments.peers / "quick" if arguments.quick else pathlib.Path("benches/results")
    )
    command = "benches/peers/run" + (
        " --quick" if arguments.quick else f" --minutes {arguments.minutes:g}"
    )
    facts = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "command": command,
        "machine": machine(),
        "versions": versions(arguments.peers, arguments.release),
    }
    session = Session(arguments)
    facts["rounds"] = session.run()
    facts["missing"] = session.missing
    report.write(output, facts, session.rows)
    return any(row.get("wrong") for row in session.rows)


if __name__ == "__main__":
    sys.exit(main())
