"""Make an environment in which the tests run on other processors by emulation: aarch64, and x86-64 without AVX-512.

    python tools/arm_environment.py FOLDER

needs no rights of root and leaves the system as it is. It wants Linux with apt (Debian, Ubuntu), whose mirrors it uses. Makes

    FOLDER/python           Debian's Python for arm64, with NumPy and what the tests need, without Numba
    FOLDER/python-haswell   the Python that runs this script, with its packages, on a Haswell (AVX2); made on x86-64 only
    FOLDER/ready            when all is there: a further call does nothing, unless pyproject.toml or this script is newer

The first two start QEMU. The variable QEMU_CPU names another processor for `python` (cortex-a72, say; without
it, one that can do all that QEMU can).
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
# python3 draws in the libraries of its extension modules, the C++ one is for those of NumPy and ml_dtypes.
PACKAGES = ("python3", "libstdc++6")
# Numba takes ten times as long to compile under emulation; the other two are large, and only tests of plots and examples use them.
LEFT_OUT = ("numba", "matplotlib", "scikit-learn")
EMULATORS = ("qemu-aarch64-static", "qemu-x86_64-static")
# Less what QEMU does not emulate and would warn of on stderr, which tests read.
HASWELL = "Haswell-noTSX,-pcid,-x2apic,-tsc-deadline,-invpcid"
PLATFORMS = ("manylinux_2_17_aarch64", "manylinux2014_aarch64", "manylinux_2_27_aarch64", "manylinux_2_28_aarch64")

DOWNLOADS = ("apt-host", "apt-arm64")  # folders that are not kept
PARTS = ("qemu", "root", "aarch64", "haswell")

# What apt would write or run outside the folder is turned away from there. It is read after the system's settings (a proxy,
# keys), whose hooks clean the system's own caches and are cleared.
APT_SETTINGS = """\
#clear DPkg::Post-Invoke;
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear APT::Architectures;
APT::Architecture "{architecture}";
APT::Architectures {{ "{architecture}"; }};
APT::Sandbox::User "";
Acquire::Languages "none";
Dir::State "{folder}/state";
Dir::State::Lists "{folder}/state/lists";
Dir::State::status "{folder}/state/status";
Dir::Cache "{folder}/cache";
Dir::Log "{folder}/log";
"""

# The name that Python is told it was started by (-0) is this script: it becomes sys.executable, so that child processes are
# emulated too, and it makes the folder a virtual environment, whose pyvenv.cfg says where Python really is.
LAUNCHER = """\
#!/bin/sh
exec {qemu} {options} -0 {launcher} {python} "$@"
"""


def run(*command: str | Path) -> str:
    """The output of a command; what it complained of, if it failed."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{shlex.join(str(word) for word in command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def download(packages: tuple[str, ...], architecture: str, folder: Path, *, dependencies: bool) -> list[Path]:
    """The .deb files of Debian packages. To apt nothing is installed, so that what they depend on comes whole."""
    archives = folder / "cache" / "archives"
    for made in (folder / "state" / "lists" / "partial", archives / "partial", folder / "log"):
        made.mkdir(parents=True)
    (folder / "state" / "status").touch()
    settings = folder / "apt.conf"
    settings.write_text(APT_SETTINGS.format(architecture=architecture, folder=folder))
    apt = ("apt-get", "-qq", "-c", settings)
    run(*apt, "update")
    if dependencies:
        run(*apt, "--yes", "--download-only", "--no-install-recommends", "install", *packages)
    else:
        run("env", "-C", archives, *apt, "download", *packages)
    return sorted(archives.glob("*.deb"))


def unpack(archives: list[Path], root: Path) -> None:
    for archive in archives:
        run("dpkg-deb", "-x", archive, root)


def emulator(machine: str, folder: Path) -> Path:
    """A QEMU that runs programs of this machine: an installed one, else Debian's, which is downloaded once for all machines."""
    installed = shutil.which(f"qemu-{machine}-static") or shutil.which(f"qemu-{machine}")
    if installed:
        return Path(installed)
    root = folder / "qemu"
    if not root.exists():
        architecture = run("dpkg", "--print-architecture").strip()
        unpack(download(("qemu-user-static",), architecture, folder / "apt-host", dependencies=False), root)
        for program in (root / "usr" / "bin").iterdir():  # it has one for each of thirty processors
            if program.name not in EMULATORS:
                program.unlink()
    return root / "usr" / "bin" / f"qemu-{machine}-static"


def arm_python(folder: Path) -> Path:
    """Debian's Python for arm64 and its libraries, unpacked into the folder `root`."""
    root = folder / "root"
    unpack(download(PACKAGES, "arm64", folder / "apt-arm64", dependencies=True), root)
    if not (root / "lib").exists():  # newer releases have all in /usr and leave this link to the installation
        (root / "lib").symlink_to("usr/lib")
    # QEMU looks here first for every path: other programs that a test starts are to be those of the system.
    for programs in (root / "bin", root / "sbin", root / "usr" / "bin", root / "usr" / "sbin"):
        for program in programs.glob("*"):
            if not program.name.startswith("python3"):
                program.unlink()
    return (root / "usr" / "bin" / "python3").resolve()


def requirements() -> list[str]:
    """What the library and its tests need, less what is left out."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    return ["pip", *(one for one in needed if not one.startswith(LEFT_OUT))]


def install_wheels(version: str, target: Path) -> None:
    """Install packages for another processor with the pip of this one."""
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    options = ("--quiet", "--no-compile", "--only-binary=:all:", "--python-version", version, *platforms, "--target", target)
    run(sys.executable, "-m", "pip", "install", *options, *requirements())


def write_launcher(home: Path, qemu: Path, options: str, python: Path) -> None:
    """Make `home` a virtual environment of this Python, emulated."""
    launcher = home / "bin" / "python"
    launcher.parent.mkdir()
    (home / "pyvenv.cfg").write_text(f"home = {python.parent}\ninclude-system-site-packages = false\n")
    words = {"qemu": qemu, "launcher": launcher, "python": python}
    launcher.write_text(LAUNCHER.format(options=options, **{name: shlex.quote(str(path)) for name, path in words.items()}))
    launcher.chmod(0o755)


def check(launcher: Path, machine: str) -> None:
    """The emulated Python finds its packages and says what it should be, and so does a child that it starts by its own name."""
    code = "import platform, sys, numpy; print(platform.machine(), sys.executable)"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-I', '-c', {code!r}], check=True)"
    said = run(launcher, "-c", child)
    if said.strip() != f"{machine} {launcher}":
        raise SystemExit(f"{launcher} says: {said}")


def make_arm(folder: Path) -> Path:
    """Debian's Python and what the tests need, on aarch64."""
    home, python = folder / "aarch64", arm_python(folder)
    packages = home / "lib" / python.name / "site-packages"
    install_wheels(python.name.removeprefix("python"), packages)
    # The sources themselves are in use, as in the other environments.
    (packages / "pullback.pth").write_text(f"{PROJECT.parent / 'src'}\n")
    write_launcher(home, emulator("aarch64", folder), f"-L {shlex.quote(str(folder / 'root'))}", python)
    check(home / "bin" / "python", "aarch64")
    return home


def make_haswell(folder: Path) -> Path:
    """The environment of the Python that runs this script, on an older processor."""
    home, version = folder / "haswell", f"python{sys.version_info.major}.{sys.version_info.minor}"
    (home / "lib").mkdir(parents=True)
    (home / "lib" / version).symlink_to(Path(sys.prefix) / "lib" / version)
    write_launcher(home, emulator("x86_64", folder), f"-cpu {HASWELL}", Path(os.path.realpath(sys.executable)))
    if find_spec("numpy"):
        check(home / "bin" / "python", "x86_64")
    return home


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    folder = parser.parse_args().folder.resolve()
    ready = folder / "ready"
    sources = (PROJECT, Path(__file__))
    if ready.exists() and all(ready.stat().st_mtime > source.stat().st_mtime for source in sources):
        return
    ready.unlink(missing_ok=True)
    # What an interrupted call left behind is made anew; only what this script makes is removed.
    for part in (*PARTS, *DOWNLOADS):
        shutil.rmtree(folder / part, ignore_errors=True)
    homes = {"python": make_arm(folder)}
    if platform.machine() == "x86_64":
        homes["python-haswell"] = make_haswell(folder)
    for name, home in homes.items():
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(home.relative_to(folder) / "bin" / "python")
    for part in DOWNLOADS:
        shutil.rmtree(folder / part, ignore_errors=True)
    ready.touch()


if __name__ == "__main__":
    main()
