"""Builds goflat._core: gopy turns ./bridge into C, Go links it into one extension.

Everything else about the package is in pyproject.toml. The steps, and why they
are not simply ``gopy build``, are in docs/adr/0003-how-the-extension-is-built.md.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist
from setuptools.errors import CompileError

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools"))

import toolchain  # noqa: E402

# What the extension must not depend on: where it was built, when, and from which checkout.
REPRODUCIBLE = "-trimpath -buildvcs=false"
LDFLAGS = "-s -w -buildid= -B none"
# What gopy writes about this machine: its own command line, the include folder, and the
# linker flags that Python was built with (pyenv: an -rpath into the home folder).
LOCAL = re.compile(r'^gopy gen .*$|^#cgo LDFLAGS:.*$|(?<=^#cgo CFLAGS: )"-I[^"]*"', re.MULTILINE)
EXPORTS = "{ global: PyInit__core; local: *; };\n"
FALL_BACK = """
Without the extension goflat does the same in pure Python, at the speed of torch.cat:
    GOFLAT_PURE=1 pip install ...
and where there is no network, with setuptools installed:
    GOFLAT_PURE=1 pip install --no-build-isolation ..."""


def settle(folder: Path) -> None:
    """Make what gopy wrote the same at every run: it orders functions as a Go map does."""
    stubs, calls = folder / "core.go", folder / "build.py"
    head, functions = LOCAL.sub("", stubs.read_text()).rsplit("// ---- Functions ---", 1)
    stubs.write_text(head + "//export".join(sorted(functions.split("//export"))))
    block = re.compile(r"(^add_checked_.*\n)+", re.MULTILINE)
    ordered = block.sub(lambda found: "".join(sorted(found[0].splitlines(True))), calls.read_text())
    calls.write_text(ordered)


class BuildCore(build_ext):
    """Builds the extension below build/, then puts it into place in one step."""

    def build_extension(self, ext: Extension) -> None:
        """Build while no other build of the same tree does."""
        import fcntl  # not on Windows, where there is no extension to build

        (ROOT / "build").mkdir(exist_ok=True)
        with (ROOT / "build" / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.build_core(Path(self.get_ext_fullpath(ext.name)))

    def build_core(self, target: Path) -> None:
        """Generate, compile and link, each step in one method below."""
        # Inside the module, so that the generated package resolves its imports; the
        # leading "_" keeps `go build ./...` from visiting it.
        self.out = ROOT / "build" / f"_core-{sys.implementation.cache_tag}"
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir(parents=True)
        try:
            toolchain.check()
            self.env = toolchain.environment()
        except toolchain.ToolchainError as missing:
            lacks = f"The extension of goflat cannot be built here:\n{missing}\n{FALL_BACK}"
            raise CompileError(lacks) from None
        self.env["GOFLAGS"] = f"{os.environ.get('GOFLAGS', '')} {REPRODUCIBLE}".strip()
        self.fetch()
        self.generate()
        self.link(target)

    def run_tool(self, *command: str, cwd: Path = ROOT) -> None:
        """Run one build step with Go and the headers in reach."""
        print("+", *command, flush=True)
        try:
            subprocess.run(command, check=True, env=self.env, cwd=cwd)
        except subprocess.CalledProcessError as failed:
            raise CompileError(f"{' '.join(command[:3])} failed; its message is above") from failed

    def fetch(self) -> None:
        """Download the Go modules and compile the bridge, so that errors of either are plain."""
        quiet = "-f={{with .Error}}{{.}}{{end}}"
        try:
            self.run_tool("go", "list", "-deps", quiet, "./bridge", "tool")
        except CompileError as failed:
            hint = "A first build gets Go modules from the Go module proxy (GOPROXY)."
            raise CompileError(f"{failed}. {hint}\n{FALL_BACK}") from failed
        self.run_tool("go", "build", "./bridge", "github.com/go-python/gopy/gopyh")

    def generate(self) -> None:
        """Let gopy write core.go and build.py, cgo the header, and pybindgen core.c."""
        gopy = ["-name=core", "-no-make", "-dynamic-link=true", f"-vm={sys.executable}"]
        self.run_tool("go", "tool", "gopy", "gen", f"-output={self.out}", *gopy, "./bridge")
        settle(self.out)
        self.run_tool("go", "tool", "goimports", "-w", str(self.out / "core.go"))
        header = ["-exportheader=core_go.h", "--"]
        includes = toolchain.include_flags()
        self.run_tool("go", "tool", "cgo", *header, *includes, "core.go", cwd=self.out)
        self.run_tool(sys.executable, "build.py", cwd=self.out)

    def link(self, target: Path) -> None:
        """Link the extension and replace ``target``: a process that has the old one keeps it."""
        exports = self.out / "exports.map"
        exports.write_text(EXPORTS)
        built = self.out / target.name
        flags = f"-ldflags={LDFLAGS} -extldflags=-Wl,--version-script={exports}"
        self.run_tool(
            "go", "build", "-buildmode=c-shared", flags, "-o", str(built), ".", cwd=self.out
        )
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_suffix(".new")
        shutil.copy2(built, fresh)
        fresh.replace(target)


class BuildPython(build_py):
    """Starts from an empty folder, so that a deleted module does not stay in the wheel."""

    def run(self) -> None:
        """Copy the modules, after dropping those of an earlier build."""
        if not self.editable_mode:
            shutil.rmtree(Path(self.build_lib) / "goflat", ignore_errors=True)
        super().run()
        if not self.editable_mode and (found := commit()):
            (Path(self.build_lib) / "goflat" / "commit.txt").write_text(found + "\n")


class Source(sdist):
    """Says in the source distribution which commit it is of."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Add a file to the tree."""
        super().make_release_tree(base_dir, files)
        if found := commit():
            (Path(base_dir) / "commit.txt").write_text(found + "\n")


def commit() -> str | None:
    """Return the commit of this tree, with a + if tracked files have been changed."""
    told = ROOT / "commit.txt"
    if told.exists():  # a source distribution
        return told.read_text().strip()
    if not (ROOT / ".git").exists():  # perhaps inside somebody else's checkout
        return None
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+"]
    try:
        return subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL).strip()
    except (OSError, subprocess.CalledProcessError):
        return None


core = [Extension("goflat._core", [])] if toolchain.wanted() else []
setup(ext_modules=core, cmdclass={"build_ext": BuildCore, "build_py": BuildPython, "sdist": Source})
