"""The rows as classes for asv (airspeed velocity): attnpy alone, over many commits.

asv run --config benchmarks/asv.conf.json v0.1..main
"""

from . import groups, measure, peers


def by_name(group):
    return {row.name: row for row in groups.timed_rows([group])}


class _Rows:
    """What the classes below share: a row of a group and a number of threads."""

    param_names = ("row", "threads")
    timeout = 120

    def setup(self, name, n_threads):
        row = by_name(self.group)[name]
        if row.case.dtype == "bfloat16" and not peers.version("ml_dtypes"):
            raise NotImplementedError  # asv skips it
        if hasattr(row.case, "expected") and not peers.version("safetensors"):
            raise NotImplementedError
        self.call = measure.own_way(row, row.case.arrays(), n_threads).call

    def time_attention(self, name, n_threads):
        self.call()


class Full(_Rows):
    group = "full"
    params = (list(by_name("full")), [1, 2])


class Causal(_Rows):
    group = "causal"
    params = (list(by_name("causal")), [1, 2])


class Half(_Rows):
    group = "half"
    params = (list(by_name("half")), [1, 2])


class Masks(_Rows):
    group = "masks"
    params = (list(by_name("masks")), [1, 2])


class GroupedHeads(_Rows):
    group = "gqa"
    params = (list(by_name("gqa")), [1, 2])


class Decode(_Rows):
    group = "decode"
    params = (list(by_name("decode")), [1, 2])


class Small(_Rows):
    group = "small"
    params = (list(by_name("small")), [1])


class Float64(_Rows):
    group = "float64"
    params = (list(by_name("float64")), [1, 2])


class Layers(_Rows):
    group = "layers"
    params = (list(by_name("layers")), [1, 2])


class Models(_Rows):
    group = "models"
    params = (list(by_name("models")), [1, 2])


class Generation(_Rows):
    group = "generation"
    params = (list(by_name("generation")), [1, 2])


class ImportTime:
    """Seconds to import attnpy, NumPy's own included, in a fresh process."""

    def timeraw_import(self):
        return "import attnpy"
