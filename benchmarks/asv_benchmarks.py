"""The rows as classes for asv (airspeed velocity): attnpy alone, over many commits.

asv run --config benchmarks/asv.conf.json v0.1..main
"""

from . import groups, measure, peers

# What asv calls each group.
NAMES = {
    "Full": "full",
    "Causal": "causal",
    "Half": "half",
    "Masks": "masks",
    "GroupedHeads": "gqa",
    "Decode": "decode",
    "Small": "small",
    "Float64": "float64",
    "Layers": "layers",
    "Models": "models",
    "Generation": "generation",
}


def by_name(group):
    return {row.name: row for row in groups.timed_rows([group])}


class _Rows:
    """What the classes of the groups share: a row and a number of threads."""

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


for _name, _group in NAMES.items():
    _params = (list(by_name(_group)), [1] if _group == "small" else [1, 2])
    globals()[_name] = type(_name, (_Rows,), {"group": _group, "params": _params})


class ImportTime:
    """Seconds to import attnpy, NumPy's own included, in a fresh process."""

    def timeraw_import(self):
        return "import attnpy"
