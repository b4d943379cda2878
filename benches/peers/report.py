"""The tables of a comparison: times, bandwidths, and the ratios that must hold."""

import collections
import dataclasses
import json
import re
import statistics

MIB = 1 << 20

# Below this size an operation is all latency.
BANDWIDTH_MIN = 64 << 10


def size_text(size):
    for shift, unit in ((20, "MiB"), (10, "KiB")):
        if size >= 1 << shift:
            return f"{size >> shift} {unit}"
    return f"{size} B"


@dataclasses.dataclass(frozen=True)
class Must:
    """A ratio that must hold at every size from `low` to `high`.

    It is the time of the fastest of `beside`, divided by the time of `ours`: how many times as fast
    ours is.
    """

    measure: str
    ours: str
    beside: tuple
    low: int
    high: int
    ratio: float
    ranks: int = 2


MPI_SHM = ("Open MPI shm", "MPICH shm")
OVERSUBSCRIBED = ("bonfire threads", "bonfire shm, region", "bonfire shm, private", "bonfire tcp")
MUST_HOLD = [
    Must("threads / zero-copy loop", "bonfire threads", ("zero-copy loop",),
         MIB, 256 * MIB, 0.80),
    Must("processes, buffers in the region / the same loop", "bonfire shm, region",
         ("zero-copy loop",), 16 * MIB, 256 * MIB, 0.50),
    Must("processes, buffers in the region / the better MPI over shm", "bonfire shm, region",
         MPI_SHM, 16 * MIB, 256 * MIB, 3.0),
    Must("processes, small / Open MPI shm", "bonfire shm, region", ("Open MPI shm",),
         4, 4096, 1.0),
    Must("processes, small / gloo", "bonfire shm, region", ("gloo",), 4, 4096, 50.0),
    Must("TCP, large / plain loopback", "bonfire tcp", ("plain loopback",),
         16 * MIB, 256 * MIB, 0.80),
    Must("TCP, large / gloo", "bonfire tcp", ("gloo",), 16 * MIB, 256 * MIB, 1.5),
    Must("TCP, small / gloo", "bonfire tcp", ("gloo",), 4, 64 << 10, 10.0),
    # At most 1.2 times its latency.
    Must("TCP, small / Open MPI tcp", "bonfire tcp", ("Open MPI tcp",), 4, 64 << 10, 1 / 1.2),
    *(
        Must(f"4 ranks, {ours.removeprefix('bonfire ')} / gloo", ours, ("gloo",),
             4, 256 * MIB, 1.0, ranks=4)
        for ours in OVERSUBSCRIBED
    ),
    Must("threads / burn-collective 0.21 ring, 64 MiB", "bonfire threads",
         ("burn-collective ring",), 64 * MIB, 64 * MIB, 10.0),
]


class Times:
    """The time of every program, world, size and round."""

    def __init__(self, rows):
        self.of = collections.defaultdict(dict)
        for row in rows:
            if "time_us" in row:
                key = (row["ranks"], row["size_bytes"])
                self.of[row["program"], *key][row["round"]] = row["time_us"]
        self.worlds = collections.defaultdict(set)
        self.programs = []
        for row in rows:
            self.worlds[row["ranks"]].add(row["size_bytes"])
            if row["program"] not in self.programs:
                self.programs.append(row["program"])

    def median(self, program, ranks, size):
        times = self.of.get((program, ranks, size))
        return statistics.median(times.values()) if times else None

    def ratio(self, must, size):
        """The median over the rounds of the ratio in each; `None` without a round that has both."""
        ours = self.of.get((must.ours, must.ranks, size), {})
        beside = [self.of.get((name, must.ranks, size), {}) for name in must.beside]
        ratios = [
            min(times[number] for times in beside if number in times) / own
            for number, own in ours.items()
            if any(number in times for times in beside)
        ]
        return statistics.median(ratios) if ratios else None


def judge(times):
    """For every ratio that must hold: what it is at each size, and whether it holds."""
    verdicts = []
    for must in MUST_HOLD:
        sizes = [size for size in sorted(times.worlds[must.ranks]) if must.low <= size <= must.high]
        ratios = {size: times.ratio(must, size) for size in sizes}
        known = {size: ratio for size, ratio in ratios.items() if ratio is not None}
        worst = min(known, key=known.get) if known else None
        if len(known) < len(sizes) or not known:
            verdict = "missing"
        else:
            verdict = "pass" if known[worst] >= must.ratio else "FAIL"
        verdicts.append({
            "measure": must.measure,
            "ranks": must.ranks,
            "must": round(must.ratio, 3),
            "ratios": {str(size): ratio for size, ratio in ratios.items()},
            "worst": known.get(worst),
            "worst_size_bytes": worst,
            "verdict": verdict,
        })
    return verdicts


def table(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def number(value, digits=3):
    """So many significant digits, without an exponent."""
    if value is None:
        return "-"
    if value >= 10 ** (digits - 1):
        return f"{value:.0f}"
    return f"{value:.{digits}g}"


def of_programs(times, ranks, cell, low=0):
    sizes = sorted(size for size in times.worlds[ranks] if size >= low)
    measured = [
        program
        for program in times.programs
        if any(times.median(program, ranks, size) for size in sizes)
    ]
    rows = [
        [program, *(cell(times.median(program, ranks, size), size) for size in sizes)]
        for program in measured
    ]
    return table(["", *map(size_text, sizes)], rows)


def bandwidth(time_us, size):
    return number(None if time_us is None else size / time_us / 1e3)


def verdict_table(verdicts):
    rows = [
        [
            verdict["measure"],
            f">= {number(verdict['must'])}",
            " ".join(
                f"{size_text(int(size))}: {number(ratio)}"
                for size, ratio in verdict["ratios"].items()
            ),
            number(verdict["worst"]),
            verdict["verdict"],
        ]
        for verdict in verdicts
    ]
    return table(["speed of ours / of the other", "must", "measured", "worst", ""], rows)


def problems(facts, rows):
    lines = [f"- missing: {name}" for name in facts["missing"]]
    seen = set()
    for row in rows:
        key = (row["program"], row["ranks"], row["size_bytes"])
        fault = row.get("error") or (f"{row['wrong']} wrong elements" if row.get("wrong") else None)
        if fault and key not in seen:
            seen.add(key)
            lines.append(
                f"- {row['program']}, {row['ranks']} ranks, {size_text(row['size_bytes'])}: {fault}"
            )
    return "\n".join(lines or ["- none"]) + "\n"


def markdown(facts, rows, times, verdicts):
    machine = facts["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    parts = [
        "# All-reduce beside its peers\n",
        f"`{facts['command']}`, {facts['date']}, {facts['rounds']} rounds.\n",
        f"Machine: {machine['cores']} cores of {machine['cpu']} ({machine['cache_mib']} MiB "
        f"last-level cache), {machine['memory_gib']} GiB, {machine['kernel']}; load "
        f"{machine['load_at_start']:.2f} at the start.\n",
        f"Versions: {versions}.\n",
        "In place, f32, sum. Each figure is the median over the rounds of the median operation on "
        "the slowest rank; every result was verified; the buffers take twice the last-level cache "
        "in all and take turns (small messages: 512 buffers). How it is done: the book's page on "
        "measuring.\n",
        "## What must hold\n",
        "Ratios are taken within a round; the median over the rounds is given for each size.\n",
        verdict_table(verdicts),
    ]
    for ranks in sorted(times.worlds):
        parts += [
            f"## {ranks} ranks: time in us\n",
            of_programs(times, ranks, lambda time, _: number(time)),
            f"## {ranks} ranks: algbw in GB/s\n",
            of_programs(times, ranks, bandwidth, low=BANDWIDTH_MIN),
        ]
    parts += ["## Missing, failed or wrong\n", problems(facts, rows)]
    return "\n".join(parts)


def file_name(facts):
    cpu = re.sub(r"\((R|TM)\)|processor|cpu|@.*", "", facts["machine"]["cpu"], flags=re.IGNORECASE)
    words = re.findall(r"[a-z0-9]+", cpu.lower())
    return "-".join([facts["date"][:10], *words, f"{facts['machine']['cores']}-cores"])


def write(folder, facts, rows):
    """Prints the ratios, and writes everything as Markdown and JSON."""
    times = Times(rows)
    verdicts = judge(times)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(facts)
    text = markdown(facts, rows, times, verdicts)
    path.with_suffix(".md").write_text(text)
    head = json.dumps({**facts, "must_hold": verdicts}, indent=1).removesuffix("\n}")
    lines = ",\n  ".join(map(json.dumps, rows))
    path.with_suffix(".json").write_text(f'{head},\n "rows": [\n  {lines}\n ]\n}}\n')
    print("\n" + verdict_table(verdicts))
    print(problems(facts, rows))
    print(f"written: {path}.md and .json")
