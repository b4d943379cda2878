"""The programs that are measured, and how each is started for one message size."""

import dataclasses
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile

# A measurement that takes longer than this has gone wrong.
TIMEOUT_S = 60


@dataclasses.dataclass(frozen=True)
class Task:
    """One message size of one world."""

    ranks: int
    size: int
    samples: int
    warmup: int
    rotate: int

    def arguments(self):
        return [str(self.size), str(self.samples), str(self.warmup), str(self.rotate)]


class Failed(Exception):
    """The program did not give a figure."""


class TimedOut(Failed):
    """It took too long."""


def finish(processes, seconds):
    """The outputs of processes that were started together; ends all of them in any case."""
    try:
        outputs = [process.communicate(timeout=seconds) for process in processes]
    except subprocess.TimeoutExpired:
        raise TimedOut(f"took more than {seconds} s") from None
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    for process, (_, error) in zip(processes, outputs):
        if process.returncode != 0:
            lines = error.strip().splitlines()
            raise Failed(f"exit code {process.returncode}: {' '.join(lines[-3:])}"[:300])
    return [output for output, _ in outputs]


def start(command, environment):
    return subprocess.Popen(
        command,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def last_object(text):
    """The JSON object in the last line of an output, in which a launcher may have put the rank before it."""
    try:
        return json.loads(text.strip().splitlines()[-1].removeprefix("[rank 0] "))
    except (IndexError, json.JSONDecodeError):
        raise Failed(f"no result in {text[-200:]!r}") from None


@dataclasses.dataclass(frozen=True)
class Program:
    """A column of the tables."""

    name: str
    # The file without which the program is missing.
    file: pathlib.Path

    def missing(self):
        return not self.file.exists()

    def takes_part(self, task):
        return True

    def measure(self, task):
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Bonfire(Program):
    transport: str
    buffers: str

    def command(self, task, path):
        return [
            str(self.file), "bench", "all-reduce",
            "--ranks", str(task.ranks),
            "--transport", self.transport,
            "--buffers", self.buffers,
            "--form", "in-place",
            "--min-bytes", str(task.size),
            "--max-bytes", str(task.size),
            "--iters", str(task.samples),
            "--warmup", str(task.warmup),
            "--rotate-bytes", str(task.rotate),
            "--json", path,
        ]

    def measure(self, task):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rows.json")
            finish([start(self.command(task, path), {})], TIMEOUT_S)
            [row] = json.loads(pathlib.Path(path).read_text())
        return row


@dataclasses.dataclass(frozen=True)
class Limit(Program):
    """What the machine itself can do, for two ranks."""

    limit: str
    size_min: int

    def takes_part(self, task):
        return task.ranks == 2 and task.size >= self.size_min

    def measure(self, task):
        command = [
            str(self.file), self.limit,
            "--bytes", str(task.size), "--rotate-bytes", str(task.rotate),
        ]
        return last_object(finish([start(command, {})], TIMEOUT_S)[0])


@dataclasses.dataclass(frozen=True)
class Mpi(Program):
    options: tuple
    environment: tuple

    def measure(self, task):
        folder = self.file.parent
        command = [
            str(folder / "bin" / "mpirun"), "-n", str(task.ranks), *self.options,
            str(self.file), *task.arguments(),
        ]
        return last_object(finish([start(command, dict(self.environment))], TIMEOUT_S)[0])


@dataclasses.dataclass(frozen=True)
class Gloo(Program):
    script: pathlib.Path
    # In the place of those of the task.
    arguments: tuple = ()

    def measure(self, task):
        arguments = self.arguments or task.arguments()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        processes = [
            start(
                [str(self.file), str(self.script), *arguments],
                {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(task.ranks),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "GLOO_SOCKET_IFNAME": "lo",
                },
            )
            for rank in range(task.ranks)
        ]
        return last_object(finish(processes, TIMEOUT_S)[0])


@dataclasses.dataclass(frozen=True)
class BurnCollective(Program):
    size: int

    def takes_part(self, task):
        return task.ranks == 2 and task.size == self.size

    def measure(self, task):
        command = [str(self.file), str(task.ranks), str(task.size), "5", "2"]
        result = last_object(finish([start(command, {})], TIMEOUT_S)[0])
        times = sorted(result["times_us"])
        return {
            "min_us": times[0],
            "time_us": times[len(times) // 2],
            "mean_us": sum(times) / len(times),
            "batch": 1,
            "wrong": result["wrong"],
        }


def programs(peers, release):
    """Everything that is measured, in the order of a round."""
    bonfire, limits = release / "bonfire", release / "examples" / "limits"
    openmpi, mpich = peers / "openmpi" / "all_reduce", peers / "mpich" / "all_reduce"
    here = pathlib.Path(__file__).parent

    def open_mpi(transport):
        options = ("--oversubscribe", "--mca", "pml", "ob1", "--mca", "btl", f"self,{transport}")
        return options + (("--allow-run-as-root",) if os.geteuid() == 0 else ())

    over_tcp = (
        ("MPIR_CVAR_NOLOCAL", "1"),
        ("MPIR_CVAR_CH4_NETMOD", "ofi"),
        ("FI_PROVIDER", "tcp"),
    )
    return [
        Limit("zero-copy loop", limits, "in-place-sum", 1 << 20),
        Bonfire("bonfire threads", bonfire, "local", "region"),
        Bonfire("bonfire shm, region", bonfire, "shm", "region"),
        Bonfire("bonfire shm, private", bonfire, "shm", "private"),
        Mpi("Open MPI shm", openmpi, open_mpi("sm"), ()),
        Mpi("MPICH shm", mpich, (), ()),
        Limit("plain loopback", limits, "loopback-duplex", 64 << 10),
        Bonfire("bonfire tcp", bonfire, "tcp", "private"),
        Mpi("Open MPI tcp", openmpi, open_mpi("tcp"), ()),
        Mpi("MPICH tcp", mpich, (), over_tcp),
        Gloo("gloo", peers / "torch" / "bin" / "python", here / "gloo" / "all_reduce.py"),
        BurnCollective(
            "burn-collective ring",
            peers / "burn-collective" / "release" / "peer-burn-collective",
            64 << 20,
        ),
    ]
