"""All-reduces in place between two hosts whose link is limited: Bonfire's chain beside torch's gloo, beside what the link
allows and what the simulator says. The hosts are network namespaces, so this needs root.

The bound is the time of S bytes at the rate of the link: an all-reduce must move as many each way.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

import programs

SIZES = [1 << 20, 4 << 20, 16 << 20, 64 << 20]
PORT = "29517"
# gloo takes minutes where the machine is slow.
TIMEOUT_S = 600
# What is left of the rate after the headers of Ethernet, IP and TCP.
PAYLOAD = 1448 / 1514
# The time of one way over a pair of interfaces, and what ranks of a host need for a message.
LATENCY = "50us"


class Hosts:
    """Two network namespaces joined by a pair of interfaces."""

    def __init__(self, mbit):
        self.names = [f"bonfire-peers-{os.getpid()}-{host}" for host in range(2)]
        self.mbit = mbit

    def __enter__(self):
        try:
            self.make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def make(self):
        for name in self.names:
            ip("netns", "add", name)
        first, second = self.names
        ip("-n", first, "link", "add", "name", "eth0", "type", "veth", "peer", "name", "eth0", "netns", second)
        for host, name in enumerate(self.names):
            ip("-n", name, "addr", "add", f"10.88.0.{host + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "dev", "lo", "up")
            ip("-n", name, "link", "set", "dev", "eth0", "up")
            # A network card sends frame by frame, where a limiter lets a burst through at once. A burst must be larger
            # than what TCP hands over in one piece, or the limiter does not reach its rate; so the pieces are small.
            ip("-n", name, "link", "set", "dev", "eth0", "gso_max_size", "16384")
            shaped = ["tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", f"{self.mbit}mbit",
                      "burst", "40kb", "latency", "50ms"]
            subprocess.run(shaped, check=True)

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)

    def start(self, host, command, environment):
        return programs.start(["ip", "netns", "exec", self.names[host], *command], environment)


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def bonfire(hosts, program, per_host, size, samples):
    with tempfile.TemporaryDirectory() as folder:
        rows = pathlib.Path(folder) / "rows.json"
        bench = [
            str(program), "bench", "all-reduce", "--algorithm", "chain", "--form", "in-place",
            "--min-bytes", str(size), "--max-bytes", str(size), "--iters", str(samples), "--json", str(rows),
        ]
        processes = [
            hosts.start(host, [
                str(program), "run", "--nnodes", "2", "--node-rank", str(host), "--master-addr", "10.88.0.1",
                "--master-port", PORT, "--nproc-per-node", str(per_host), "--", *bench,
            ], {})
            for host in range(2)
        ]
        programs.finish(processes, TIMEOUT_S)
        [row] = json.loads(rows.read_text())
    return row["time_us"]


def gloo(hosts, python, per_host, size, samples):
    script = pathlib.Path(__file__).parent / "gloo" / "all_reduce.py"
    processes = [
        hosts.start(rank // per_host, [str(python), str(script), str(size), str(samples), "2", "0"], {
            "RANK": str(rank), "WORLD_SIZE": str(2 * per_host), "MASTER_ADDR": "10.88.0.1", "MASTER_PORT": PORT,
            "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1",
        })
        for rank in range(2 * per_host)
    ]
    return programs.last_object(programs.finish(processes, TIMEOUT_S)[0])["time_us"]


def simulated(program, mbit, per_host, size):
    with tempfile.TemporaryDirectory() as folder:
        rows = pathlib.Path(folder) / "rows.json"
        command = [
            str(program), "simulate", "--ranks", str(2 * per_host), "--hosts", "2", "--link", "shm", "--inter-link",
            f"alpha={LATENCY},bandwidth={mbit / 8 * PAYLOAD / 1000:.5f}GB/s", "--op", "all-reduce", "--algorithm",
            "chain", "--bytes", str(size), "--json", str(rows),
        ]
        programs.finish([programs.start(command, {})], programs.TIMEOUT_S)
        [row] = json.loads(rows.read_text())
    return row["time_us"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=pathlib.Path, required=True)
    parser.add_argument("--release", type=pathlib.Path, required=True)
    parser.add_argument("--mbit", type=float, default=1000)
    parser.add_argument("--per-host", type=int, nargs="+", default=[4])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    program, python = options.release / "bonfire", options.peers / "torch" / "bin" / "python"
    print("ranks    bytes      bound  simulated  bonfire      gloo  bound/bonfire  gloo/bonfire  simulator's error  (ms)")
    errors = []
    with Hosts(options.mbit) as hosts:
        for per_host in options.per_host:
            for size in SIZES:
                errors.append(measure(hosts, program, python, per_host, size, options.rounds))
    errors = [abs(error) for error in errors]
    print(f"simulator's error: median {statistics.median(errors):.1f} %, worst {max(errors):.1f} %")


def measure(hosts, program, python, per_host, size, rounds):
    """Prints a line, and returns the simulator's error in percent."""
    samples = 8 if size > 16 << 20 else 12
    own, peer = [], []
    for _ in range(rounds):
        own.append(bonfire(hosts, program, per_host, size, samples) / 1000)
        if python.exists():
            peer.append(gloo(hosts, python, per_host, size, samples) / 1000)
    bound = size * 8 / hosts.mbit / 1000
    expected = simulated(program, hosts.mbit, per_host, size) / 1000
    measured, others = statistics.median(own), statistics.median(peer) if peer else float("nan")
    error = 100 * (expected / measured - 1)
    print(f"2 x {per_host} {size:9} {bound:9.1f} {expected:10.1f} {measured:8.1f} {others:9.1f} {bound / measured:14.2f} "
          f"{others / measured:13.2f} {error:+17.1f} %", flush=True)
    print("         of each round:", " ".join(f"{time:.1f}" for time in own), "|",
          " ".join(f"{time:.1f}" for time in peer), flush=True)
    return error


main()
