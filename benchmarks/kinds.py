"""Kinds of work: to which one a sample of `perf` belongs, by the code it was in.

KINDS names files and folders of csrc/, and functions as "file:function". A sample lies
in an inlined function, that in another, and so on. The innermost of them that has a
kind decides. The vector vocabulary and compilers' headers have none: they work for
their callers.
"""

from __future__ import annotations

import re
from collections import Counter

KINDS = {
    "products": (
        "kernel/gemm/",
        "kernel/integer/",
        "kernel/bytes/",
        "kernel/amx/",
        "kernel/integer/weights.h:add_quads",
        "kernel/linear/few_rows.h",
        "kernel/linear/many_rows.h",
        "kernel/linear/tile.h",
        "kernel/linear/linear.h",
        "kernel/attention/bytes.h",
        "kernel/attention/products.h",
        "kernel/attention/row_form/bytes.h",
        "kernel/attention/tile_form/bytes.h",
        "kernel/attention/tile_form/products.h",
        "kernel/attention/row_form/scores.h",
        "kernel/attention/row_form/values.h",
        "kernel/backward/products.h",
        "kernel/backward/sums.h",
        "kernel/backward/masked.h",
        "kernel/backward/bands.h",
    ),
    "softmax": (
        "kernel/math/exp.h",
        "kernel/math/log.h",
        "kernel/attention/softmax.h",
        "kernel/attention/statistics/",
        "kernel/attention/row_form/row.h",
        "kernel/attention/row_form/weights.h",
        "kernel/attention/tile_form/codes.h",
        "kernel/attention/tile_form/tile.h",
        "kernel/attention/tile_form/scores.h",
        "kernel/backward/scores.h",
        "kernel/backward/delta.h",
        "kernel/backward/sinks.h",
        "core/statistics.c",
    ),
    "transpositions": (
        "kernel/operands/lanes.h",
        "kernel/operands/pair.h:v_transpose_operands",
        "kernel/operands/real.h:v_transpose_operands",
    ),
    "loads and conversions": (  # reading, converting, packing, prefetching
        "core/half.h",
        "kernel/operands/",
        "kernel/attention/operands.h",
        "kernel/attention/keys.h",
        "kernel/attention/rows.h",
        "kernel/attention/row_form/prefetch.h",
        "kernel/attention/tile_form/scores.h:scale_tile",
        "kernel/attention/tile_form/scores.h:prefetch_beside_scores",
        "kernel/attention/row_form/bytes.h:weigh_values",
        "kernel/attention/row_form/weights.h:scale_row_weights",
        "kernel/attention/row_form/row.h:scale_row_scores",
        "kernel/bytes/digits.h:copy_panel",
        "kernel/bytes/digits.h:zip_quads",
        "kernel/bytes/lanes.h:load_columns",
        "kernel/bytes/lanes.h:widen_panel",
        "kernel/bytes/lanes.h:zip_columns",
        "kernel/bytes/unit.h:transpose_weights",
        "kernel/bytes/unit.h:zip_quarter",
        "kernel/gemm/few_rows.h:multiply_vectors_of_rows",  # add_step multiplies
        "kernel/gemm/columns.h",
        "kernel/gemm/lines.h:add_columns",  # add_products multiplies
        "kernel/gemm/lines.h:prefetch_lines",
        "kernel/linear/input.h",
        "kernel/linear/pack.h",
        "kernel/linear/weights.h",
        "kernel/linear/few_rows.h:stage_lines",
        "kernel/linear/many_rows.h:scatter_elements",
        "kernel/linear/many_rows.h:load_adjacent_rows",
        "kernel/linear/many_rows.h:fetch_row_groups",
        "kernel/linear/many_rows.h:prefetch_panel",
        "kernel/integer/weights.h",  # add_quads multiplies
        "kernel/integer/kernel.h:convert_factors",
        "kernel/integer/product.h:convert_part",
        "kernel/integer/product.h:call_convert_part",
        "kernel/integer/unit.h:make_codes_ready",
        "kernel/amx/attention_scores.h:fetch_key_tiles",
        "kernel/amx/attention_row_values.h:stage_value_line",
        "kernel/amx/attention_tile_values.h:stage_value_tile",
        "kernel/amx/attention_tile_values.h:stage_two_tiles",
        "kernel/amx/attention_tile_values.h:stage_some_tiles",
        "kernel/amx/backward_products.h:transpose_keys",
        "kernel/amx/backward_sums.h:factors_of_band",
        "kernel/amx/linear.h:pack_lines",
        "kernel/amx/linear.h:pack_block",
        "kernel/amx/linear_task.h:load_x",
        "kernel/backward/tile.h",
        "kernel/backward/prefetch.h",
    ),
    "masks and biases": (
        "core/visibility.",
        "kernel/attention/block.h",
        "kernel/attention/dropout.h",
        "kernel/attention/tile_form/span.h",
        "kernel/attention/tile_form/scores.h:finish_with_bias",
        "kernel/attention/tile_form/scores.h:drop_tile",
        "kernel/attention/softmax.h:finish_scores",
        "kernel/backward/bias.h",
        "kernel/backward/scores.h:transpose_bias",
    ),
    "outputs": (  # finished, converted, stored; chunks of keys combined
        "kernel/attention/results.h",
        "kernel/attention/chunks.h",
        "kernel/attention/rows.h:store_result",
        "kernel/attention/row_form/row.h:rows_to_tile",
        "kernel/operands/convert.h:store_element",
        "kernel/operands/convert.h:store_half",
        "kernel/operands/convert.h:store_row",
        "kernel/operands/round.h",
        "kernel/linear/epilogue.h",
        "kernel/linear/direct.h",
        "kernel/amx/linear_store.h",
        "kernel/backward/clear.h",
        "kernel/backward/sums.h:move_query_sums",
        "kernel/amx/backward_sums.h:end_tile",
    ),
    "rounding rows": (
        "kernel/bytes/round.h",
        "kernel/integer/rows.h",
        "kernel/integer/split.h",
        "kernel/rows/quantise.h",
    ),
    "activations": (
        "core/activate.",
        "kernel/math/activations.h",
        "kernel/math/activation_grad.h",
        "kernel/rows/activate_array.h",
    ),
    "norms and rotations": (
        "core/norm.",
        "core/rotary.",
        "kernel/rows/moments.h",
        "kernel/rows/norm.h",
        "kernel/rows/norm_vjp.h",
        "kernel/rows/rotary.h",
    ),
    "waiting": ("core/pool.", "core/cpu.c:attn_cpu_pause"),
    "calls": (  # Python, NumPy, checks of arguments, division into tasks
        "core/",
        "python/",
        "kernel/kernel.h",
        "kernel/contract.h",
        "kernel/arena.h",
        "kernel/attention/attend.h",
        "kernel/attention/task.h",
        "kernel/backward/backward.h",
        "kernel/backward/choice.h",
        "kernel/backward/pass.h",
        "kernel/backward/task.h",
        "kernel/linear/task.h",
        "kernel/integer/task.h",
        "kernel/amx/kernel.h",
    ),
}
# Functions of a file with a kind that work for their callers; and the vocabulary.
NO_KIND = (
    "isa/",
    "vec/",
    "kernel/sizes.h",
    "kernel/operands/operand.h",
    "kernel/operands/pair.h:load_operand",
    "kernel/operands/pair.h:load_operands",
    "kernel/operands/pair.h:v_dot",
    "kernel/operands/pair.h:v_load_operands",
    "kernel/operands/pair.h:v_set1_operand",
    "kernel/operands/real.h:load_operand",
    "kernel/operands/real.h:load_operands",
    "kernel/operands/real.h:v_dot",
    "kernel/operands/real.h:v_load_operands",
    "kernel/operands/real.h:v_set1_operand",
)
# Of other libraries: what a sample belongs to by the names of file and function.
LIBRARIES = (
    (r"\[vdso\]", "", "waiting"),  # spinning threads look at the clock
    (r"\[kernel|\[guest", "", "system"),
    (r"/libc[.-]", r"mem(cpy|move|set)", "copies"),
    (r"torch|libgomp|libshm", "", "PyTorch"),
    (r"tokenizers", "", "tokenizer"),
    (r"/libc[.-]|/libm[.-]|ld-linux|python|numpy|lib-dynload", "", "calls"),
)
PLACES = {place: kind for kind, places in KINDS.items() for place in places}
PLACES |= dict.fromkeys(NO_KIND)


def kind_at(function, file):
    """The kind of a function, None where it works for its callers, or "unknown"."""
    if file.startswith("/"):  # a compiler's or system's header
        return None
    folders = [file[: i + 1] for i, letter in enumerate(file) if letter in "/."]
    for place in (f"{file}:{function}", file, *reversed(folders)):
        if place in PLACES:
            return PLACES[place]
    return "unknown"


def kind_of(frames):
    """The kind of the functions that a sample is in, the innermost first."""
    kinds = (kind_at(function, file) for function, file in frames)
    return next(filter(None, kinds), "unknown")


def kind_in_library(file, function):
    """The kind of a sample that is not in attnpy's extension."""
    for files, functions, kind in LIBRARIES:
        if re.search(files, file) and re.search(functions, function):
            return kind
    return "unknown"


# ---- What the programs say -----------------------------------------------------------

SAMPLE = re.compile(r"^ *(\d+) +([0-9a-f]+) (.*) \((.*)\)$", re.M)


def read_samples(text):
    """Samples as `perf script -F tid,ip,sym,dso` prints them, and the most of a thread.

    The samples are counted by address, name of the function and name of the file.
    """
    found = SAMPLE.findall(text)
    threads = Counter(thread for thread, *_ in found)
    counts = Counter((int(address, 16), *names) for _, address, *names in found)
    return counts, max(threads.values(), default=0)


def read_frames(text):
    """{address: frames} as `addr2line -a -f -i` prints them, files from csrc/ on."""
    found = {}
    for part in re.split(r"^0x", text, flags=re.M)[1:]:
        address, *lines = part.splitlines()
        places = (line.rpartition(":")[0] for line in lines[1::2])
        files = (place.rpartition("csrc/")[2] for place in places)
        found[int(address, 16)] = list(zip(lines[::2], files, strict=True))
    return found
