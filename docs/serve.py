"""Build the documentation site in build/site, and show it: `python docs/serve.py`."""

import argparse
import contextlib
import functools
import shutil
import subprocess
import sys
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

DOCS = Path(__file__).resolve().parent
SITE = DOCS.parent / "build" / "site"
MADE = (SITE, DOCS / "api" / "generated", DOCS / "gallery")


def build():
    """Build from nothing, so that nothing of what is gone stays."""
    for folder in MADE:
        shutil.rmtree(folder, ignore_errors=True)
    options = ["-q", "-W", "--keep-going", "-j", "auto", "-c", DOCS]
    command = [sys.executable, "-m", "sphinx", *options, DOCS.parent, SITE]
    print(f"building {SITE}: a minute or two", flush=True)
    return subprocess.run(command, cwd=DOCS.parent).returncode


def server_at(port):
    """Return a server of the pages to this machine."""
    handler = functools.partial(SimpleHTTPRequestHandler, directory=SITE)
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        sys.exit(f"--port {port}: {error.strerror}; with 0 it is one that is free")


def serve(server):
    """Serve until Ctrl-C."""
    with contextlib.suppress(KeyboardInterrupt):
        print(f"http://127.0.0.1:{server.server_port}  (Ctrl-C ends it)", flush=True)
        server.serve_forever()


def main():
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", action="store_true", help="build only")
    parser.add_argument("--port", type=int, default=8000, help="8000; 0 for a free one")
    given = parser.parse_args()
    if find_spec("sphinx") is None:
        sys.exit("docs/serve.py needs Sphinx: pip install -e '.[docs]'")
    if given.build:
        sys.exit(build())
    with server_at(given.port) as server:
        status = build()
        if status == 0:
            serve(server)
    sys.exit(status)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # while it builds
        sys.exit(130)
