"""Makes a CUDA build of torch load on a machine without CUDA's libraries.

PyPI has no CPU-only torch for Linux on x86-64, and the CUDA build links to several gigabytes of
libraries that its gloo backend never calls. This writes a stand-in for each of them that is missing:
a library of the same name in which every symbol that torch wants is a function that returns
cudaErrorNoDevice. It goes where torch's own search path finds it.

    stand_ins.py SITE_PACKAGES
"""

import collections
import pathlib
import re
import subprocess
import sys
import tempfile

# What a C library and compiler bring; never replaced.
SYSTEM = re.compile(r"lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|gomp|util)\.so|ld-linux")
# The symbols of CUDA's libraries that carry no version.
CUDA = re.compile(r"cu|nccl|nv")
NO_DEVICE = 100


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main():
    site = pathlib.Path(sys.argv[1])
    libraries = sorted((site / "torch" / "lib").glob("*.so*"))
    needed, wanted, loose = set(), collections.defaultdict(set), set()
    for library in libraries:
        dynamic = run("readelf", "-dW", str(library))
        needed.update(re.findall(r"NEEDED.*\[(.*)\]", dynamic))
        table = run("nm", "-D", "--undefined-only", "--with-symbol-versions", str(library))
        for symbol in (line.split()[-1] for line in table.splitlines() if line):
            name, _, version = symbol.partition("@")
            if version:
                wanted[version.lstrip("@")].add(name)
            else:
                loose.add(name)
    own = {library.name for library in libraries}
    missing = sorted(name for name in needed if name not in own and not SYSTEM.match(name))
    # Below one of the folders in which torch's libraries look for those of CUDA.
    folder = site / "nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True, exist_ok=True)
    for name in missing:
        version = "NVSHMEM" if "nvshmem" in name else name
        # A symbol without a version is found in whichever library has it: all of them have all.
        symbols = wanted.get(version) or {symbol for symbol in loose if CUDA.match(symbol)}
        build(folder / name, sorted(symbols), version if version in wanted else None)
    print(f"{len(missing)} stand-ins for CUDA libraries in {folder}")


def build(path, symbols, version):
    with tempfile.TemporaryDirectory() as scratch:
        source = pathlib.Path(scratch) / "stand_in.c"
        lines = [f"int {symbol}(void) {{ return {NO_DEVICE}; }}\n" for symbol in symbols]
        source.write_text("".join(lines))
        command = ["cc", "-shared", "-fPIC", "-w", "-fno-builtin", str(source), "-o", str(path)]
        if version:
            script = pathlib.Path(scratch) / "versions"
            script.write_text(f"{version} {{ *; }};\n")
            command.append(f"-Wl,--version-script={script}")
        run(*command, f"-Wl,-soname,{path.name}")


if __name__ == "__main__":
    main()
