#!/usr/bin/env python3
"""Compares what `gpt --plan` says of memory with what its ranks then take, in four sizes x four placements, with and
without recomputed blocks, or with another mesh of two ranks:

    cargo build --release -p gpt && benches/memory.py target/release/gpt

Each training is a job of two processes. The figure is the most that any of them had resident, from its report.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

# Layers, width, heads, context, windows of a batch.
SIZES = {
    "S, 3 M": (4, 256, 4, 128, 4),
    "M, 13 M": (4, 512, 8, 128, 8),
    "L, 25 M": (8, 512, 8, 256, 4),
    "XL, 50 M": (4, 1024, 16, 128, 8),
}
PLACEMENTS = ["replicated", "zero1", "zero2", "zero3"]
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def flags(size, extra):
    layers, width, heads, context, batch = size
    return [
        f"--layers={layers}", f"--width={width}", f"--heads={heads}", f"--context={context}", f"--batch={batch}",
        "--threads=1", "--nproc=2", "--device=cpu", *extra,
    ]


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def planned(gpt, size, extra):
    """Resident bytes by placement: the column behind that of all classes."""
    found = {}
    for line in run([gpt, "--plan", *flags(size, extra)]).splitlines():
        words = line.split()
        if words and words[0] in PLACEMENTS:
            amounts = [float(n) * UNITS[u] for n, u in zip(words, words[1:]) if u in UNITS]
            # Of the ranks of pp, that with the most.
            found[words[0]] = max(amounts[-1], found.get(words[0], 0))
    return found


def measured(gpt, size, extra, placement, steps):
    with tempfile.TemporaryDirectory() as folder:
        run([
            gpt, *flags(size, extra), f"--placement={placement}", f"--steps={steps}", "--eval-windows=2",
            "--sample=0", f"--report-dir={folder}",
        ])
        report = json.loads(Path(folder, "report.json").read_text())
    return max(report["memory"]["peak_bytes"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gpt", type=Path, help="the program")
    parser.add_argument("--sizes", default=",".join(name.split(",")[0] for name in SIZES))
    parser.add_argument("--placements", default=",".join(PLACEMENTS))
    parser.add_argument("--mesh", default="dp=2", help="of two ranks, such as tp=2")
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    worst = 0.0
    print("| model | blocks | placement | planned MiB | measured MiB | difference |\n|---|---|---|---|---|---|")
    for name, size in SIZES.items():
        if name.split(",")[0] not in args.sizes.split(","):
            continue
        for blocks, extra in [("kept", []), ("recomputed", ["--checkpoint-blocks"])]:
            extra = [*extra, f"--mesh={args.mesh}"]
            plan = planned(args.gpt, size, extra)
            for placement in args.placements.split(","):
                peak = measured(args.gpt, size, extra, placement, args.steps)
                difference = plan[placement] / peak - 1
                worst = max(worst, abs(difference))
                print(f"| {name} | {blocks} | {placement} | {plan[placement] / 2**20:.0f} | {peak / 2**20:.0f} | "
                      f"{100 * difference:+.1f} % |", flush=True)
    print(f"\nlargest difference: {100 * worst:.1f} %")


if __name__ == "__main__":
    main()
