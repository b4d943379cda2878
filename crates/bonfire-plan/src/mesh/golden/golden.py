"""Writes the tables beside it: every mesh of 8 and of 12 ranks, and where its ranks are, by enumeration."""
import itertools
import pathlib

for ranks in (8, 12):
    lines = []
    for sizes in itertools.product(range(1, ranks + 1), repeat=5):
        total = 1
        for size in sizes:
            total *= size
        if total == ranks:
            places = itertools.product(*(range(size) for size in sizes))
            words = ["".join(map(str, place)) for place in places]
            lines.append(f"{list(sizes)} {' '.join(words)}\n")
    pathlib.Path(__file__).with_name(f"{ranks}.txt").write_text("".join(lines))
