"""What a row's time goes to: samples of perf are read and sorted rightly."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))  # last: there is an attnpy/ as well, perhaps not built

from benchmarks import bounds, kinds, pages, report  # noqa: E402

pytestmark = pytest.mark.quick
CSRC = ROOT / "csrc"

# From `perf script -F tid,ip,sym,dso`, and `addr2line -a -f -i`.
SAMPLES = """\
  5101     7f0000001010 run (/b/attnpy/_attnpy.abi3.so)
  5101     7f0000001010 run (/b/attnpy/_attnpy.abi3.so)
  5101     7f0000001020 [unknown] (/b/attnpy/_attnpy.abi3.so)
  5102     7f1111111111 _PyEval_EvalFrameDefault (/usr/bin/python3.11)
  5101 ffffffff81000000 clear_page ([kernel.kallsyms])
  5102     7f2222222222 a<b (c)>::d (/lib/libmystery.so.1)
"""
FRAMES = """\
0x0000000000001010
_mm512_fmadd_ps
/usr/lib/gcc/x86_64-linux-gnu/12/include/avx512fintrin.h:2522
v_fma
/s/csrc/vec/avx512_f32.h:84
v_dot
/s/csrc/kernel/operands/real.h:71 (discriminator 3)
multiply_panel
/s/csrc/kernel/gemm/tiles.h:60
run
/s/csrc/kernel/attention/attend.h:70
0x0000000000001020
v_fma
/s/csrc/vec/avx512_f32.h:84
exp_of
csrc/kernel/math/exp.h:40
exponentiate_tile
csrc/kernel/attention/tile_form/tile.h:20
"""


def test_samples_are_counted_by_address_and_names():
    counts, most = kinds.read_samples(SAMPLES)
    assert most == 4
    assert counts.total() == 6
    file = "/b/attnpy/_attnpy.abi3.so"
    assert counts[0x7F0000001010, "run", file] == 2
    assert counts[0x7F2222222222, "a<b (c)>::d", "/lib/libmystery.so.1"] == 1
    assert kinds.read_samples("") == ({}, 0)


def test_the_innermost_function_with_a_kind_decides():
    frames = kinds.read_frames(FRAMES)
    assert frames[0x1020][1] == ("exp_of", "kernel/math/exp.h")
    assert {x: kinds.kind_of(y) for x, y in frames.items()} == {
        0x1010: "products",
        0x1020: "softmax",
    }
    assert kinds.kind_of([("v_fma", "vec/avx512_f32.h")]) == "unknown"
    assert kinds.kind_of([("??", "??")]) == "unknown"


def test_shares_are_of_the_time_of_all_threads():
    counts, most = kinds.read_samples(SAMPLES)
    file = next(name for _, _, name in counts if "_attnpy" in name)
    frames = kinds.read_frames(FRAMES)  # nothing is left to look up
    found = bounds.shares(counts, most, 2, (file, 0x7F0000000000), frames)
    assert found == pytest.approx(
        {
            "products": 25.0,
            "waiting": 25.0,
            "softmax": 12.5,
            "calls": 12.5,
            "system": 12.5,
            "unknown": 12.5,
        }
    )


def functions_of(path):
    """The names that a file defines as functions."""
    return set(re.findall(r"^(\w+)\(", path.read_text("utf-8"), re.M))


def test_every_place_with_a_kind_is_in_the_sources():
    files = {str(path.relative_to(CSRC)): path for path in CSRC.rglob("*.[ch]")}
    for place in kinds.PLACES:
        file, _, function = place.partition(":")
        assert any(name.startswith(file) for name in files), place
        assert not function or function in functions_of(files[file]), place


@pytest.mark.parametrize("folder", ["kernel", "core", "python"])
def test_every_file_has_a_kind(folder):
    files = [str(x.relative_to(CSRC)) for x in (CSRC / folder).rglob("*.[ch]")]
    assert len(files) > 40
    assert [x for x in files if kinds.kind_at("any", x) == "unknown"] == []


ROW = {"group": "causal", "name": "x", "threads": 2}
FOUND = {
    **ROW,
    "date": "2026-01-02",
    "commit": "abc",
    "limit": "peak",
    "percent": 60.0,
    "computed": 1.2,
    "kinds": {"products": 80.0, "softmax": 17.6, "calls": 2.4},
}


def test_the_page_of_misses_says_what_the_time_goes_to():
    assert report.bound_of(FOUND) == "products 80 % at 90 % of the peak; softmax 18 %"
    read = {**FOUND, "limit": "bandwidth"}
    assert report.bound_of(read) == "60 % of the bandwidth; products 80 %; softmax 18 %"
    kept = [{**ROW, "missed": [[["ms", "<=", 15, 16.0]]]}]
    kept += [{**kept[0], "name": "y"}]
    _, table = report.misses(kept, [FOUND])
    header, _, *lines = table.splitlines()
    assert header.endswith("| missed | time goes to |")
    assert [line.split(" | ")[-1] for line in lines] == [
        "products 80 % at 90 % of the peak; softmax 18 % |",
        "not sampled |",
    ]
    kept = [{**kept[0], "percent": [50, 70, 90]}]
    _, table = report.misses(kept, [read])
    assert " | 70 % of the bandwidth; products 80 %; softmax 18 % |" in table
    _, table = report.misses(kept, [FOUND])
    assert " | products 80 % at 105 % of the peak; softmax 18 % |" in table
    store = {"title": "a Z", "rows": kept}
    assert "perf" not in pages.misses({"z": store}).partition("## A Z")[2]
    text = pages.misses({"z": {**store, "bounds": [FOUND]}})
    assert "Sampled on 2026-01-02, at commit abc." in text


def test_what_is_known_of_a_row_takes_the_place_of_earlier(tmp_path):
    path = tmp_path / "z.json"
    pages.write(path, {"rows": []})
    other = {**FOUND, "threads": 1}
    for found in (FOUND, other, {**FOUND, "percent": 61.0}):
        bounds.keep(path, found)
    assert pages.read(path)["bounds"] == [other, {**FOUND, "percent": 61.0}]


def test_only_machines_with_perf_take_samples(monkeypatch):
    monkeypatch.setattr(bounds.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match="taken by `perf` and `addr2line`, on Linux"):
        bounds.main(["--group", "full"])
    monkeypatch.setattr(bounds.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(bounds.sys, "platform", "win32")
    assert "Linux only" in bounds.missing()
