"""The rows as classes for asv (airspeed velocity): attnpy alone, over many commits.

asv run --config benchmarks/asv.conf.json v0.1..main
"""

from . import groups, measure, peers

GROUPS = ("full", "causal", "half", "masks", "gqa", "decode", "small", "float64")
GROUPS += ("layers", "models", "generation")


def by_name(group):
    return {row.name: row for row in groups.timed_rows([group])}


class _Rows:
    """What the classes of the groups share: a row and a number of threads."""

    param_names = ("row", "threads")
    timeout = 120

    def setup(self, name, n_threads):
        row = by_name(self.group)[name]
        if not peers.has_needs_of(row):
            raise NotImplementedError  # asv skips it
        self.call = measure.own_way(row, row.case.arrays(), n_threads).call

    def time_attention(self, name, n_threads):
        self.call()


for _group in GROUPS:
    _params = (list(by_name(_group)), [1] if _group == "small" else [1, 2])
    _class = type(_group.title(), (_Rows,), {"group": _group, "params": _params})
    globals()[_group.title()] = _class


class ImportTime:
    """Seconds to import attnpy, NumPy's own included, in a fresh process."""

    def timeraw_import(self):
        return "import attnpy"
