"""Build the one extension module. Everything else is declared in pyproject.toml."""

import os
import sys
import sysconfig
from glob import glob

import numpy
from setuptools import Extension, setup

if sys.platform == "win32":
    raise SystemExit(
        "attnpy does not build on Windows itself: please install it inside WSL, the "
        "Windows Subsystem for Linux."
    )

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
# Python's own flags ask for debugging information, 3 MB of it; CFLAGS=-g keeps it.
if "-g" not in os.environ.get("CFLAGS", "").split():
    compile_args.append("-g0")
if os.environ.get("ATTNPY_WERROR") == "1":
    compile_args += warnings_as_errors

setup(
    ext_modules=[
        Extension(
            "attnpy._attnpy",
            sources=sorted(glob("csrc/*.c") + glob("csrc/python/*.c")),
            depends=sorted(glob("csrc/**/*.h", recursive=True)),
            include_dirs=["csrc"],
            extra_compile_args=system_headers + compile_args,
            extra_link_args=["-pthread"],
        )
    ]
)
