"""Trains `gpt --preset nanogpt-cpu` on two ranks of one thread each, in turn with the same model under torch's
DistributedDataParallel over gloo, and prints the tokens per second of both and their ratio, round by round.
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile

import programs

RANKS, STEPS, WINDOWS = 2, 200, 6


def bonfire(gpt):
    with tempfile.TemporaryDirectory() as folder:
        command = [
            str(gpt), "--preset", "nanogpt-cpu", "--nproc", str(RANKS), "--device", "cpu",
            "--batch", str(WINDOWS), "--steps", str(STEPS), "--eval-interval", str(STEPS),
            "--eval-windows", "2", "--sample", "0", "--report-dir", folder,
        ]
        programs.finish([programs.start(command, {})], programs.TIMEOUT_S)
        report = json.loads((pathlib.Path(folder) / "report.json").read_text())
    return report["samples_per_second"]


def torch(python):
    script = pathlib.Path(__file__).parent / "gloo" / "gpt.py"
    gloo = programs.Gloo("torch", python, script, (str(STEPS), str(WINDOWS)))
    return gloo.measure(programs.Task(RANKS, 0, STEPS, 0, 0))["tokens_per_second"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=pathlib.Path, required=True)
    parser.add_argument("--release", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    gpt, python = options.release / "gpt", options.peers / "torch" / "bin" / "python"
    if not python.exists():
        sys.exit("torch is not installed; benches/peers/run says why")
    ratios = []
    print("round  bonfire  torch  ratio  (tokens per second)")
    for number in range(options.rounds):
        # Whoever goes first in one round goes last in the next.
        if number % 2 == 0:
            own, peer = bonfire(gpt), torch(python)
        else:
            peer = torch(python)
            own = bonfire(gpt)
        ratios.append(own / peer)
        print(f"{number + 1:5}  {own:7.0f}  {peer:5.0f}  {ratios[-1]:.2f}", flush=True)
    print(f"median ratio {statistics.median(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}")


main()
