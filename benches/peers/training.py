"""Trains `gpt --preset nanogpt-cpu`, or ResNet-18 on images of 32 x 32 pixels, on two ranks of one thread each, in turn
with the same model under torch's DistributedDataParallel over gloo, and prints the tokens or images per second of both
and their ratio, round by round.
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile

import programs

RANKS = 2
HERE = pathlib.Path(__file__).parent


def torch(python, script, *arguments):
    gloo = programs.Gloo("torch", python, HERE / "gloo" / script, tuple(map(str, arguments)))
    return gloo.measure(programs.Task(RANKS, 0, 0, 0, 0))


class Gpt:
    unit = "tokens"
    steps, windows = 200, 6

    def bonfire(self, release):
        with tempfile.TemporaryDirectory() as folder:
            command = [
                str(release / "gpt"), "--preset", "nanogpt-cpu", "--nproc", str(RANKS), "--device", "cpu",
                "--batch", str(self.windows), "--steps", str(self.steps),
                "--eval-interval", str(self.steps),
                "--eval-windows", "2", "--sample", "0", "--report-dir", folder,
            ]
            programs.finish([programs.start(command, {})], programs.TIMEOUT_S)
            report = json.loads((pathlib.Path(folder) / "report.json").read_text())
        return report["samples_per_second"]

    def torch(self, python):
        return torch(python, "gpt.py", self.steps, self.windows)["tokens_per_second"]


class ResNet:
    unit = "images"
    steps, batch = 15, 128

    def bonfire(self, release):
        command = [
            str(release / "resnet"), "--nproc", str(RANKS), "--device", "cpu",
            "--batch", str(self.batch), "--steps", str(self.steps),
        ]
        output = programs.finish([programs.start(command, {})], programs.TIMEOUT_S)[0]
        return programs.last_object(output)["images_per_second"]

    def torch(self, python):
        return torch(python, "resnet.py", self.steps, self.batch)["images_per_second"]


MODELS = {"gpt": Gpt(), "resnet": ResNet()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=pathlib.Path, required=True)
    parser.add_argument("--release", type=pathlib.Path, required=True)
    parser.add_argument("--model", choices=MODELS, default="gpt")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    model, python = MODELS[options.model], options.peers / "torch" / "bin" / "python"
    if not python.exists():
        sys.exit("torch is not installed; benches/peers/run says why")
    ratios = []
    print(f"round  bonfire  torch  ratio  ({model.unit} per second)")
    for number in range(options.rounds):
        # Whoever goes first in one round goes last in the next.
        if number % 2 == 0:
            own, peer = model.bonfire(options.release), model.torch(python)
        else:
            peer = model.torch(python)
            own = model.bonfire(options.release)
        ratios.append(own / peer)
        print(f"{number + 1:5}  {own:7.0f}  {peer:5.0f}  {ratios[-1]:.2f}", flush=True)
    print(f"median ratio {statistics.median(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}")


main()
