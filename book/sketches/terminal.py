"""A terminal on which a job runs, one of its ranks is killed, and the launcher reports the cause."""

import os
import re
import signal
import subprocess
import time
from html import escape

from .drawing import WIDTH

LETTERS, LETTERS_OF_TABLES, LETTER, ROW, TOP = 74, 108, 8, 19, 54
GROUND, EDGE, TEXT, FAINT, PROMPT, ERROR = "#14171b", "#3a4149", "#e4e7ea", "#9aa3ad", "#4fb0ec", "#ff9e64"


def ranks_of(launcher):
    """Process ids of a job's ranks by number, from the environment of the launcher's children."""
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(launcher)], stdout=subprocess.PIPE, text=True).stdout
    found = {}
    for child in children.split():
        try:
            with open(f"/proc/{child}/environ") as file:
                variables = dict(pair.split("=", 1) for pair in file.read().split("\0") if "=" in pair)
        except OSError:
            continue  # It has ended.
        if "RANK" in variables:
            found[int(variables["RANK"])] = int(child)
    return found


def record(gpt, folder):
    """Runs `gpt` on two ranks, kills rank 1, and returns pairs: seconds, and what stood there then."""
    environment = os.environ | {"BONFIRE_LOG": "warn", "BONFIRE_FLIGHT_DIR": str(folder / "flights")}
    job = subprocess.Popen([gpt, "--nproc", "2"], cwd=folder, env=environment, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, start_new_session=True)
    start, lines, killed = time.monotonic(), [(0.0, "$ ./gpt --nproc 2")], None
    try:
        for line in job.stdout:
            lines.append((time.monotonic() - start, line.rstrip()))
            if not killed and " loss " in line and re.search(r"step +60/", line):
                killed = ranks_of(job.pid)[1]
                os.kill(killed, signal.SIGKILL)
                lines.append((time.monotonic() - start, f"# in another terminal: kill -9 {killed}"))
        code = job.wait(timeout=60)
    finally:
        if job.poll() is None:
            job.kill()
    assert killed and code == 1, f"the job ended with {code}: {lines}"
    lines.append((lines[-1][0], f"$ echo $?\n{code}"))
    return shortened(lines, folder)


def hung(gpt, bonfire, folder):
    """Runs `gpt` on three ranks, stops rank 1, and returns what `bonfire inspect` says of the job."""
    job = subprocess.Popen([gpt, "--nproc", "3", "--device", "cpu", "--steps", "1000000", "--report-dir", "job"],
                           cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    stopped = None
    try:
        time.sleep(30)
        stopped = ranks_of(job.pid)[1]
        os.kill(stopped, signal.SIGSTOP)
        time.sleep(8)
        asked = subprocess.run([bonfire, "inspect", str(job.pid)], stdout=subprocess.PIPE, text=True).stdout
    finally:
        if stopped:
            os.kill(stopped, signal.SIGCONT)
        job.send_signal(signal.SIGINT)
        job.wait(timeout=120)
    # Of the groups of all axes, that which averages gradients.
    asked = next(group for group in re.split(r"^(?=Group \d)", asked, flags=re.M) if " wait in " in group).rstrip()
    return [(0.0, f"# rank 1 of job {job.pid} is stopped"), (0.0, f"$ bonfire inspect {job.pid}"),
            *((0.0, line) for line in asked.split("\n"))]


def without_peers(bonfire, libraries):
    """What `bonfire doctor` says of two devices of the CUDA emulator that do not reach each other's memory."""
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(libraries), "CUDA_PATH": str(libraries), "CUDA_STAND_IN_CAPABILITY": "7.5",
        "CUDA_STAND_IN_DEVICES": "2", "CUDA_STAND_IN_FAULTS": "no-peer"}
    said = subprocess.run([bonfire, "doctor"], env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    devices, found = said[said.index("GPU 0"):], said[said.index("slow:"):]
    shown = [*devices.split("\n\n")[0].split("\n"), "...", *found.split("note:")[0].rstrip().split("\n")]
    return [(0.0, line) for line in ["$ bonfire doctor", *shown]]


def shortened(lines, folder):
    """Without the summary of further groups, of which each axis of the mesh has one; with example paths."""
    kept = []
    for seconds, line in lines:
        if re.match(r"  (group \d|\d+ more groups)", line):
            line = "  ..."
            if kept[-1][1] == line:
                continue
        kept.append((seconds, line.replace(str(folder), "/tmp")))
    return kept


def folded(line, letters):
    """In rows of the terminal's width, at a word where there is one."""
    rows = []
    for part in line.split("\n"):
        while len(part) > letters:
            cut = part.rfind(" ", 20, letters)
            cut = cut if cut > 0 else letters
            rows.append(part[:cut])
            part = "    " + part[cut:].strip()
        rows.append(part)
    return rows


def draw(path, lines, letters=LETTERS):
    """Lines that appear as they did; all of them at once where nothing may move."""
    parts, row, width = [], 0, max(WIDTH, letters * LETTER + 40)
    for seconds, line in lines:
        colour = PROMPT if line.startswith(("$", "#")) else ERROR if "error" in line else TEXT
        for text in folded(line, letters):
            parts.append(f'<text x="20" y="{TOP + ROW * row}" fill="{colour}" xml:space="preserve" '
                         f'style="animation-delay:{seconds:.2f}s">{escape(text)}</text>')
            row += 1
    height = TOP + ROW * row + 6
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="\'DejaVu Sans Mono\', Menlo, Consolas, monospace" font-size="13">\n'
        # A picture that is printed, or a reader who wants no motion, gets the last state.
        f'<style>@media screen and (prefers-reduced-motion: no-preference) {{'
        f'text {{ animation: show 0.01s linear both }} @keyframes show {{ from {{ opacity: 0 }} to {{ opacity: 1 }} }}'
        f'}}</style>\n'
        f'<rect width="{width}" height="{height}" rx="10" fill="{GROUND}" stroke="{EDGE}"/>\n'
        f'<g fill="{FAINT}"><circle cx="24" cy="20" r="5"/><circle cx="42" cy="20" r="5"/>'
        f'<circle cx="60" cy="20" r="5"/></g>\n' + "\n".join(parts) + "\n</svg>\n")
