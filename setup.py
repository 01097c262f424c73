"""Build the one extension module. Everything else is declared in pyproject.toml.

Compiles on all CPUs, and only once: objects stay in build/objects, where the next build
finds those whose sources, headers, flags, compiler, Python and NumPy are the same.
"""

import hashlib
import importlib.util
import logging
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from distutils.unixccompiler import UnixCCompiler  # setuptools' own
from glob import glob
from pathlib import Path

import numpy
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# Python's and NumPy's headers are system headers: their warnings are not ours.
system_headers = [
    argument
    for directory in (sysconfig.get_path("include"), numpy.get_include())
    for argument in ("-isystem", directory)
]

# -ffp-contract=off: the same bits on every machine need every fused multiply-add to
# be explicit. No -march: each kernel file enables its own instruction set.
compile_args = [
    "-std=c11",
    "-O3",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-pthread",
]
warnings_as_errors = [
    "-Wall",
    "-Wextra",
    "-Wshadow",
    "-Wundef",
    "-Wvla",
    "-Wconversion",
    "-Wstrict-prototypes",
    "-Wmissing-prototypes",
    "-Werror",
]
link_args = ["-pthread"]
# Python's own flags ask for debugging information, 3 MB of it; CFLAGS=-g keeps it, and
# the names of functions, for profilers and debuggers. Tables to unwind the stack, 0.07
# MB, serve no one else: nothing here throws, and a thread that ends within a call ends
# without them. Nor are pages worth it that are filled up so that constants lie in none
# with code.
if "-g" not in os.environ.get("CFLAGS", "").split():
    compile_args.append("-g0")
    if sys.platform == "linux":
        compile_args.append("-fno-asynchronous-unwind-tables")
        link_args += ["-Wl,--strip-all", "-Wl,-z,noseparate-code"]
if os.environ.get("ATTNPY_WERROR") == "1":
    compile_args += warnings_as_errors

# The targets of Zig's compiler, by Python's names of platforms.
windows_targets = {
    "win-amd64": "x86_64-windows-gnu",
    "win-arm64": "aarch64-windows-gnu",
}
if sys.platform == "win32":
    # Python's header defines it for Microsoft's compiler alone.
    compile_args.append("-DMS_WIN64")
    link_args.append("-s")
    # The list of what it exports stays out of the package.
    link_args.append("-Wl,--out-implib,build/objects/attnpy.lib")
    # MinGW's isnan() converts.
    warnings_as_errors.append("-Wno-float-conversion")

# Neither the binding nor the core has loops that last, but for these files: a third of
# their size is worth more. Nor has the scalar tier, which waits for fma(): it may be a
# call.
looping = ("core/embed", "core/optimize")
small_args = ["-Os"]
# Inner loops are written with vectors, and say what is to be unrolled. Around them -O3
# makes a quarter more code: for float64, whose kernels few programs use, that is not
# worth it, nor for AMX, which it makes 1 % faster; it makes AVX2 on bytes slower. But
# GCC's -O2 makes no vectors of loops over arrays of any length.
shorter = ("*_f64", "amx_bf16_f32", "amx_bytes", "avx2_bytes", *looping)
shorter_args = ["-O2"]
shorter_args_of_gcc = ["-ftree-vectorize", "-fvect-cost-model=dynamic"]
# Copies of loops and functions for some arguments take 13 kB and gain nothing. Nor do
# copies of functions that begin or end a task, or a block: those within loops say
# INLINE, and -O2 inlines no others of more than 15 instructions either. Nor do aligned
# functions, and targets of jumps that are no loops, which take 17 kB.
kernel_args_of_gcc = [
    "-falign-functions=1",
    "-falign-jumps=1",
    "-fno-version-loops-for-strides",
    "-fno-split-loops",
    "-fno-ipa-cp-clone",
    "--param=max-inline-insns-auto=15",
]

# What compilers read from the environment, beside CFLAGS and the like.
compiler_environment = [
    "ARCHFLAGS",
    "CPATH",
    "C_INCLUDE_PATH",
    "MACOSX_DEPLOYMENT_TARGET",
    "SDKROOT",
]


class BuildOnce(build_ext):
    """Compiles what changed since an earlier build, several files at a time."""

    def finalize_options(self):
        super().finalize_options()
        if self.inplace:  # also `pip install -e .`: csrc/python/testing.c is for tests
            self.define = [*(self.define or []), ("ATTN_TESTING", None)]

    def build_extensions(self):
        headers = sysconfig.get_path("include")
        if not os.path.exists(os.path.join(headers, "Python.h")):
            raise SystemExit(
                f"attnpy needs Python's headers, and there is no {headers}/Python.h: "
                "please install python3-dev, or python3-devel on Fedora and RHEL."
            )
        if sys.platform == "win32":
            self.compiler = on_windows(self.compiler)
        self.by_gcc = b"Free Software" in version_of(self.compiler.compiler_so)
        super().build_extensions()

    def build_extension(self, ext):
        folder = Path("build", "objects", self.key(ext))
        folder.mkdir(parents=True, exist_ok=True)
        objects = {
            source: (folder / source).with_suffix(".o") for source in ext.sources
        }
        digests = {
            path: hashlib.sha256(Path(path).read_bytes()).hexdigest()
            for path in ext.sources + ext.depends
        }
        changed = [
            source
            for source in ext.sources
            if self.force or not is_current(objects[source], digests)
        ]
        # The smallest first: they do little but include templates, which takes longest.
        changed.sort(key=os.path.getsize)
        workers = self.parallel or usable_cpus()
        count = f"{len(changed)} of {len(objects)} files"
        print(f"compiling {count}, {workers} at a time", flush=True)

        logging.disable(logging.INFO)  # a command of some 500 letters for each file
        pool = ThreadPoolExecutor(workers)
        try:
            tasks = [
                pool.submit(self.compile, ext, source, objects[source], digests)
                for source in changed
            ]
            for done, task in enumerate(as_completed(tasks), start=1):
                print(f"[{done}/{len(tasks)}] {task.result()}", flush=True)
        finally:
            pool.shutdown(cancel_futures=True)
            logging.disable(logging.NOTSET)

        self.compiler.force = True  # links even if the result of other flags is newer
        self.compiler.link_shared_object(
            [str(path) for path in objects.values()],
            self.get_ext_fullpath(ext.name),
            libraries=self.get_libraries(ext),
            extra_postargs=ext.extra_link_args,
            debug=self.debug,
            target_lang="c",
        )

    def key(self, ext):
        """A name for all that objects depend on beside the files of csrc/.

        The paths of headers are not part of it: pip installs NumPy for each build anew,
        in another temporary directory.
        """
        command = self.compiler.compiler_so
        parts = [
            sys.version,
            numpy.__version__,
            version_of(command).splitlines()[:1],
            command,
            ext.extra_compile_args,
            small_args,
            shorter,
            shorter_args,
            shorter_args_of_gcc,
            kernel_args_of_gcc,
            [os.environ.get(name) for name in compiler_environment],
            [self.debug, self.define, self.undef],
        ]
        digest = hashlib.sha256(repr(parts).encode()).hexdigest()
        return f"{sysconfig.get_config_var('SOABI')}-{digest[:12]}"

    def compile(self, ext, source, target, digests):
        """Compile one file and return its name.

        The object comes to its place complete, and after it the digests of the files
        that it was made from: without them an object is as good as none.
        """
        with tempfile.TemporaryDirectory(dir="build/objects") as temporary:
            [compiled] = self.compiler.compile(
                [source],
                output_dir=temporary,
                include_dirs=ext.include_dirs,
                debug=self.debug,
                extra_preargs=system_headers,
                extra_postargs=[
                    *ext.extra_compile_args,
                    *self.optimising(source),
                    *self.list_headers(),
                ],
            )
            used = {source} | included(Path(compiled).with_suffix(".d"), digests)
            sums = Path(temporary, "sums")
            sums.write_text(
                "".join(f"{digests[path]}  {path}\n" for path in sorted(used))
            )
            target.parent.mkdir(parents=True, exist_ok=True)
            sums_of(target).unlink(missing_ok=True)
            os.replace(compiled, target)
            os.replace(sums, sums_of(target))
        return source

    def optimising(self, source):
        """The options for some files, which come after those for all."""
        path = Path(source)
        has_loops = any(path.match(f"{name}.c") for name in ("isa/*", *looping))
        if not has_loops or path.match("scalar_*.c"):
            return small_args
        args = kernel_args_of_gcc if self.by_gcc else []
        if any(path.match(f"{name}.c") for name in shorter):
            args = args + shorter_args + (shorter_args_of_gcc if self.by_gcc else [])
        return args

    def list_headers(self):
        """The option that lists a file's headers, unless for two architectures.

        Apple's compiler would list those of the last architecture only.
        """
        options = " ".join(
            [*self.compiler.compiler_so, os.environ.get("ARCHFLAGS", "")]
        )
        return ["-MMD"] if options.count("-arch ") < 2 else []


def version_of(command):
    """What a compiler says of its version."""
    try:
        return subprocess.check_output([*command, "--version"])
    except FileNotFoundError:
        raise SystemExit(
            f"attnpy needs a C compiler, and there is no {command[0]}: please "
            "install gcc or clang, or set CC to the name of one."
        ) from None


def on_windows(theirs):
    """A compiler of GNU C, with the folders and macros of the one that Python chose.

    Microsoft's lacks threads of POSIX, and C for one instruction set in a program that
    runs without it.
    """
    command = windows_command()
    compiler_so = [*command, *os.environ.get("CFLAGS", "").split()]
    linker_so = [*command, "-shared", *os.environ.get("LDFLAGS", "").split()]
    if b"clang" not in version_of(command):
        # GCC does not align the stack to long vectors on Windows (its bug 54412).
        compiler_so.append("-Wa,-muse-unaligned-vector-move")
    if "ziglang" not in command:  # which needs no libraries of its own
        linker_so.append("-static")
    ours = UnixCCompiler()
    ours.set_executables(compiler_so=compiler_so, linker_so=linker_so)
    for name in ("include_dirs", "library_dirs", "macros"):
        getattr(ours, name).extend(getattr(theirs, name))
    return ours


def windows_command():
    """What compiles GNU C for Windows: CC, or the compiler of the package ziglang."""
    platform = sysconfig.get_platform()
    if platform not in windows_targets:
        raise SystemExit(
            f"attnpy needs a 64-bit Python on Windows, and this is one for {platform}."
        )
    if cc := os.environ.get("CC"):
        return [cc] if os.path.exists(cc) else cc.split()
    if importlib.util.find_spec("ziglang") is None:
        raise SystemExit(
            "attnpy needs a compiler of GNU C on Windows: please `pip install "
            "ziglang`, or set CC to the name of MinGW-w64's gcc or clang."
        )
    target = windows_targets[platform]
    return [sys.executable, "-m", "ziglang", "cc", "-target", target]


def sums_of(target):
    """The file that `sha256sum --check` would read for an object."""
    return target.with_suffix(".sums")


def is_current(target, digests):
    """Was the object made from these contents of the files?"""
    if not (target.exists() and sums_of(target).exists()):
        return False
    lines = sums_of(target).read_text().splitlines()
    return bool(lines) and all(
        digests.get(path) == digest
        for digest, _, path in (line.partition("  ") for line in lines)
    )


def included(dependencies, digests):
    """The files of csrc/ in a compiler's list; all headers if it wrote none."""
    try:
        words = dependencies.read_text().split()
    except FileNotFoundError:
        return {path for path in digests if path.endswith(".h")}
    return digests.keys() & {os.path.normpath(word) for word in words}


def usable_cpus():
    """How many CPUs this process may run on."""
    if hasattr(os, "process_cpu_count"):  # Python 3.13
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def readme():
    """README.md for where its files are not beside it: a link becomes text and path."""

    def in_words(link):
        text, path = link.groups()
        return text if path in ("", text) else f"{text} (`{path}`)"

    link = r"!?\[([^]]*)\]\((?!https?:)([^)#]*)[^)]*\)"
    return re.sub(link, in_words, Path("README.md").read_text("utf-8"))


setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    cmdclass={"build_ext": BuildOnce},
    ext_modules=[
        Extension(
            "attnpy._attnpy",
            sources=sorted(glob("csrc/**/*.c", recursive=True)),
            depends=sorted(glob("csrc/**/*.h", recursive=True)),
            include_dirs=["csrc"],
            extra_compile_args=compile_args,
            extra_link_args=link_args,
        )
    ],
)
