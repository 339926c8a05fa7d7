"""Build what is published, and try each file as its users will: in a fresh environment, without network.

    python tools/release.py            # everything
    python tools/release.py --dirty    # also with changes that are not committed, to try the rest

Checks that the tree is clean and that version, changelog and citation agree; builds the sdist, the wheel of Python alone and those
with kernels; installs each into an environment of its own and runs there `pullback check --quick`, `pullback train`
and the examples of the README.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from hatch_build import LEVELS  # noqa: E402

DIST = ROOT / "dist"
# What the fresh environments are made from: the package's dependencies, and for the sdist what builds it.
NEEDED = ("numpy", "numba", "rich", "ml_dtypes", "autograd", "onnx", "safetensors", "matplotlib", "hatchling")


def run(*command: str | Path, **environment: str) -> str:
    print("$", " ".join(str(word).replace(str(ROOT), ".") for word in command), flush=True)
    done = subprocess.run(
        [str(word) for word in command], cwd=ROOT, env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\nfailed with exit status {done.returncode}")
    return done.stdout


def version() -> str:
    """The version, on which package, changelog and citation agree."""
    found = {
        "src/pullback/__init__.py": r'__version__ = "([^"]+)"',
        "CHANGELOG.md": r"^## (\S+)",
        "CITATION.cff": r"^version: (\S+)",
    }
    versions = {name: re.search(text, (ROOT / name).read_text(), re.MULTILINE).group(1) for name, text in found.items()}
    if len(set(versions.values())) > 1:
        sys.exit(f"the versions differ: {versions}")
    return versions["CHANGELOG.md"]


def check_tree(dirty: bool) -> None:
    changed = run("git", "status", "--porcelain")
    if changed and not dirty:
        sys.exit(f"there are changes that are not committed:\n{changed}")


def build() -> None:
    for machine, levels in LEVELS.items():
        for level in levels:
            print(run(sys.executable, "tools/build_kernels.py", "--level", level, "--into", "build/shipped"), end="")
        run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", DIST, PULLBACK_SHIP=machine)
    run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--wheel", "--outdir", DIST, PULLBACK_SHIP="")


def try_out(file: Path, packages: Path) -> None:
    """Install a file without network, as `pip install 'pullback[...]'` would, and use it."""
    compiles = "none-any" in file.name or file.suffix == ".gz"
    extras = "train,autograd,bfloat16" + (",compiler" if compiles else "")
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        run(python, "-m", "pip", "install", "--quiet", "--no-index", "--find-links", packages, f"{file}[{extras}]")
        cache = {"PULLBACK_CACHE_DIR": str(Path(folder) / "cache"), "PYTHONPATH": ""}
        has_numba = "numba" in run(python, "-m", "pip", "list", "--format=freeze")
        if has_numba is not compiles:
            sys.exit(f"{file.name} {'needs' if has_numba else 'does not need'} Numba")
        # On the fast kernels and no others: a warning would say that one is missing.
        strict = (python, "-W", "error::RuntimeWarning")
        print(run(*strict, "-m", "pullback", "check", "--quick", PULLBACK_BACKEND="cpu", **cache).splitlines()[-1])
        run(*strict, "-m", "pullback", "train", "--into", Path(folder) / "trained", PULLBACK_BACKEND="cpu", **cache)
        run(*strict, "-m", "doctest", "-o", "NORMALIZE_WHITESPACE", "README.md", **cache)
    print(f"{file.name}: {file.stat().st_size / 1e6:.1f} MB, checked")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dirty", action="store_true", help="also with changes that are not committed")
    options = parser.parse_args()
    check_tree(options.dirty)
    name = version()
    DIST.mkdir(exist_ok=True)
    for old in DIST.iterdir():
        old.unlink()
    build()
    with tempfile.TemporaryDirectory() as packages:
        run(sys.executable, "-m", "pip", "download", "--quiet", "--dest", packages, *NEEDED)
        for file in sorted(DIST.iterdir()):
            if "aarch64" in file.name and platform.machine() != "aarch64":
                print(f"{file.name}: {file.stat().st_size / 1e6:.1f} MB; it runs elsewhere (make test-arm)")
            else:
                try_out(file, Path(packages))
    print(f"pullback {name} is ready in dist/: python -m twine upload dist/*")


if __name__ == "__main__":
    main()
