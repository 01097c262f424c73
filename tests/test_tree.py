"""The tree: no file needs another in a circle, or what is private to it.

And the groups of arguments, which C and Python both define, are the same.
"""

import ast
import re
import subprocess
import sys
import typing
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.calls import ADD_BFLOAT16, ADD_INTEGERS
from support.processes import assert_runs

from attnpy import _attention, _attnpy, _options, _typing

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[1] / "attnpy"


def name_of(path):
    """The module that a file is: attnpy/blocks/__init__.py is attnpy.blocks."""
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text("utf-8")) for name, path in FILES.items()}
MODULES = {*FILES, "attnpy._attnpy"}


def imports(tree):
    """What a file imports of the package: pairs of a module and a name in it, or None.

    Where the name is a module itself, it is the first of the pair.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in MODULES:
                    yield alias.name, None
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports in the package are absolute"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in MODULES:
                    yield inner, None
                elif node.module in MODULES:
                    yield node.module, alias.name


def graph():
    """The modules that each one imports, those for type annotations among them."""
    return {
        name: {module for module, _ in imports(tree)} for name, tree in TREES.items()
    }


def test_no_file_needs_another_in_a_circle():
    TopologicalSorter(graph()).prepare()


def test_a_circle_would_be_found():
    edges = graph()
    assert "attnpy.models.sampling" in edges["attnpy.models.decoder"]
    edges["attnpy.models.sampling"].add("attnpy.models.decoder")
    with pytest.raises(CycleError):
        TopologicalSorter(edges).prepare()


def test_adapters_come_when_they_are_asked_for():
    run = """
import sys
import attnpy
assert not any(name.startswith("attnpy.integrations") for name in sys.modules)
for name in sys.argv[1:]:
    sys.modules[name] = None  # not installed
    try:
        getattr(attnpy.integrations, name)
    except ImportError as error:
        assert "pip install" in str(error), error
    else:
        raise AssertionError(name)
assert not hasattr(attnpy.integrations, "cupy")
"""
    folder = ROOT / "integrations"
    names = {path.stem for path in folder.iterdir() if path.stem[0] != "_"}
    assert len(names) == 7
    assert_runs(run, *sorted(names - {"huggingface"}))


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def defined(tree):
    """The names that a file gives to something, on its classes' instances as well."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield from [node.attr] if ast.unparse(node.value) == "self" else []


@pytest.mark.parametrize("name", FILES)
def test_no_file_uses_what_is_private_to_another(name):
    tree = TREES[name]
    used = {inner for _, inner in imports(tree) if inner is not None}
    used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    modules = {module.rpartition(".")[2] for module in MODULES}
    private = {inner for inner in used if is_private(inner)}
    python = {
        "_asdict",
        "_exit",
        "_getframe",
        "_replace",
    }  # documented, for all their underscores
    assert not private - modules - python - set(defined(tree))


@pytest.mark.parametrize("name", FILES)
def test_each_file_says_what_it_is_for(name):
    assert ast.get_docstring(TREES[name])


def test_attention_alone_imports_nothing_else():
    script = (
        "import sys, attnpy\n"
        "attnpy.attention([[1.0]], [[1.0]], [[1.0]])\n"
        "print(*sorted(name for name in sys.modules if name.startswith('attnpy')))"
    )
    loaded = subprocess.check_output([sys.executable, "-c", script], text=True)
    own = [
        "_attention",
        "_attnpy",
        "_checks",
        "_gradients",
        "_keywords",
        "_machine",
        "_merge",
        "_options",
        "_plan",
        "_repr",
        "_version",
    ]
    assert loaded.split() == ["attnpy", *(f"attnpy.{name}" for name in own)]


# ---- The C sources -------------------------------------------------------------------

SOURCES = ROOT.parent / "csrc"
HEADERS = sorted(SOURCES.rglob("*.h"))
OWN = {str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.[ch]")}

# What each folder may include, its own files aside.
FLOORS = {
    "core": {"vec"},  # the bytes of masks
    "vec": {"core"},  # 16-bit numbers
    "kernel": {"core", "vec"},
    "isa": {"core", "vec", "kernel"},
    "python": {"core"},
}


def included(path):
    """The files of csrc/ that one includes, by their paths from there."""
    text = path.read_text("utf-8")
    names = set(re.findall(r'^#include "(.+)"', text, re.MULTILINE))
    folder = str(path.parent.relative_to(SOURCES))
    return {name if name in OWN else f"{folder}/{name}" for name in names}


def test_no_c_file_needs_another_in_a_circle():
    edges = {name: included(SOURCES / name) for name in OWN}
    assert set().union(*edges.values()) <= OWN
    TopologicalSorter(edges).prepare()


@pytest.mark.parametrize("folder", FLOORS)
def test_a_folder_of_c_includes_only_what_is_below(folder):
    for path in (SOURCES / folder).rglob("*.[ch]"):
        above = {name.split("/")[0] for name in included(path)} - {folder}
        assert above <= FLOORS[folder], path


KERNEL = SOURCES / "kernel"
KERNEL_HEADERS = sorted(KERNEL.rglob("*.h"))

# What each room of the kernel may include, beside its own files and those on the ground
# floor, which are in no room.
ROOMS = {
    "math": set(),
    "operands": set(),
    "gemm": {"operands"},
    "rows": {"math", "operands"},
    "linear": {"math", "operands", "gemm"},
    "attention": {"math", "operands", "gemm"},
    "backward": {"math", "operands", "gemm", "attention"},
    "integer": set(),
    "bytes": set(),
    "amx": {"math", "operands", "linear", "attention", "backward"},
}

# Includes all rooms; and those that ask whether there is a matrix unit.
CHOICES = {
    "kernel/kernel.h",
    "kernel/attention/products.h",
    "kernel/backward/choice.h",
}


def room_of(name):
    """The room of a header of the kernel; "" for one on the ground floor."""
    parts = name.split("/")
    return parts[1] if len(parts) > 2 else ""


def test_a_room_of_the_kernel_includes_only_what_is_below():
    names = {str(path.relative_to(SOURCES)) for path in KERNEL_HEADERS}
    assert {room_of(name) for name in names} == {"", *ROOMS}
    for name in names - CHOICES:
        others = {room_of(other) for other in included(SOURCES / name) & names}
        assert others <= {"", room_of(name)} | ROOMS.get(room_of(name), set()), name


def test_headers_are_short():
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in HEADERS}
    most = dict.fromkeys(HEADERS, 120)
    most |= {path: 160 for path in HEADERS if path.parent.name == "vec"}
    most |= dict.fromkeys(KERNEL_HEADERS, 250)
    assert not {str(path) for path in HEADERS if lengths[path] > most[path]}


def test_each_c_file_says_what_it_is_for():
    for name in OWN:
        assert (SOURCES / name).read_text("utf-8").startswith("/*"), name


# Elsewhere, what becomes an array is what NumPy has just made, anew or of one of ours.
CAST = re.compile(r"\(PyArrayObject \*\) *(\w.*)")
NEW = re.compile(r"PyArray_(Empty|ZEROS|New|NewFromDescr|FromArray|Transpose)\(")
CONVERTS = re.compile(
    r"PyArray_(FROM_?\w+|FromAny|CheckFromAny|Ensure\w+|Converter|OutputConverter)\("
)


def reads_of_objects(text):
    """Where C code takes an object of the user's for an array, or makes one of it."""
    casts = [cast for cast in CAST.findall(text) if not NEW.match(cast)]
    return [*casts, *(found[0] for found in CONVERTS.finditer(text))]


def test_one_file_alone_reads_arrays_that_the_user_can_reach():
    binding = {path.name: path.read_text("utf-8") for path in SOURCES.glob("python/*")}
    found = {name: reads_of_objects(text) for name, text in binding.items()}
    assert {name for name in found if found[name]} == {"objects.c"}
    parse = {name for name, text in binding.items() if "PyArg_" in text}
    assert parse == {"weight.c"}  # whose array is an object until it is viewed


# ---- Storage types -------------------------------------------------------------------

# The functions that know every storage type, and those that know every way in which
# products of reals read rows where they lie.
KNOW_DTYPES = {
    "csrc/core/array.h": {"attn_storage_of"},
    "csrc/kernel/operands/convert.h": {"load_element", "store_element"},
    "csrc/kernel/operands/real.h": {"key_storage"},
    "csrc/python/arrays.c": {"py_storage_of"},
    "tests/core/support/problem.c": {"dtype_name", "read_number", "write_number"},
    "tests/core/support/plain.c": {"stored_as"},
    "tests/core/core/attention.c": {"tolerance"},
}
KNOW_STORAGES = {
    "csrc/kernel/operands/real.h": {"storage_dtype"},
    "csrc/kernel/gemm/few_rows.h": {"multiply_few_rows"},
    "csrc/kernel/gemm/lines.h": {"multiply_lines"},
}


def enumerators(path, name):
    """The names of an enum of C, wherever it is defined in a file."""
    text = (ROOT.parent / path).read_text("utf-8")
    found = re.findall(rf"typedef enum {{([^}}]*)}} {name};", text)
    return re.findall(r"\w+", " ".join(found))


DTYPES = enumerators("csrc/core/array.h", "attn_dtype")
STORAGES = enumerators("csrc/kernel/operands/real.h", "storage")


def body_of(path, function):
    """The source of one function of C, whose name begins a line."""
    text = (ROOT.parent / path).read_text("utf-8")
    found = re.findall(rf"^{function}\(.*?^}}", text, re.MULTILINE | re.DOTALL)
    assert len(found) == 1, f"{path}: {function}"
    return found[0]


def lacking(names, path, function):
    """Which of these names a function does not mention."""
    return {
        name for name in names if not re.search(rf"\b{name}\b", body_of(path, function))
    }


def cases(known):
    return [(path, function) for path in known for function in sorted(known[path])]


@pytest.mark.parametrize(("path", "function"), cases(KNOW_DTYPES))
def test_a_function_of_the_recipe_knows_each_storage_type(path, function):
    names = set(DTYPES)
    if function == "py_storage_of":  # integers are numbers only with scales
        names -= {"ATTN_I8", "ATTN_I16"}
    assert not lacking(names, path, function)


@pytest.mark.parametrize(("path", "function"), cases(KNOW_STORAGES))
def test_a_function_of_the_recipe_knows_each_way_of_reading(path, function):
    assert not lacking(STORAGES, path, function)


def test_storage_types_are_found_and_counted():
    assert {"ATTN_F16", "ATTN_BF16", "ATTN_F32", "ATTN_F64"} <= set(DTYPES)
    assert {"AS_OPERANDS", "AS_F16", "AS_BF16"} <= set(STORAGES)
    table = (SOURCES / "core" / "array.h").read_text("utf-8")
    assert f"ATTN_N_DTYPES = {DTYPES[-1]} + 1" in table
    found = lacking({"ATTN_F64", "ATTN_F8"}, "csrc/core/array.h", "attn_storage_of")
    assert found == {"ATTN_F8"}


def test_the_recipe_for_storage_types_names_each_function():
    text = (ROOT.parent / "CONTRIBUTING.md").read_text("utf-8")
    recipe = text.split("\n## Adding a storage type\n")[1].split("\n## ")[0]
    for path, functions in [*KNOW_DTYPES.items(), *KNOW_STORAGES.items()]:
        assert path.removeprefix("csrc/kernel/").removeprefix("tests/core/") in recipe
        assert all(f"`{function}`" in recipe for function in functions), path


def test_switches_over_storage_types_have_no_default():
    """So compilers name a missing case."""
    for path, functions in [*KNOW_DTYPES.items(), *KNOW_STORAGES.items()]:
        for function in functions:
            over_ours = function != "py_storage_of"  # its switch is over NumPy's types
            assert not over_ours or "default:" not in body_of(path, function), function


# ---- CONTRIBUTING.md -----------------------------------------------------------------

CONTRIBUTING = (ROOT.parent / "CONTRIBUTING.md").read_text("utf-8")
LAID_OUT = ("attnpy", "csrc", "tests/support", "benchmarks", "docs", "tools")
CODE = {".py", ".c", ".h", ".js", ".css", ".html"}
INIT = {"__init__", "__main__"}
MADE = {"__pycache__", "build", "gallery", "generated"}  # by programs

# The layout says what all files of these kinds are: a tier's, a family's, a picture's.
ALIKE = (
    r"csrc/(isa|vec)/(amx|avx|avx2|avx512|neon|scalar)(_bf16|_vnni|_dotprod)?(_f32|_f64|_int8|_bytes|_shorts)?\.[ch]",
    r"attnpy/_families/(?!(declaration|fields|rules|gguf)\.)\w+\.py",
    r"docs/pictures/\w+/\w+\.py",
)


def layout_of(text):
    """What the first block of code says of each folder, by the folder's path.

    A line of a folder begins with its name, two spaces deeper than that of the folder
    which it is in; lines of files are those of the folder which is so much shallower.
    """
    found, path, places = {}, [], []
    for line in text.split("```")[1].splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        if depth < 8:  # else it goes on from the line before
            begins = re.match(r"(\w+/ ?)*", line.lstrip())[0]
            folders = begins.replace("/", "").split()
            path = path[:depth]
            places = ["/".join([*path, name]) for name in folders] or ["/".join(path)]
            path += folders[-1:]
        for place in places:
            found[place] = found.get(place, "") + line + "\n"
    return found


LAYOUT = layout_of(CONTRIBUTING)

# What the layout does not repeat of these folders, they say themselves.
for own in ("tests/support", "benchmarks", "benchmarks/models"):
    LAYOUT[own] += (ROOT.parent / own / "__init__.py").read_text("utf-8")


def laid_out():
    """The files that the layout has to name."""
    for folder in LAID_OUT:
        for path in sorted((ROOT.parent / folder).rglob("*")):
            name = str(path.relative_to(ROOT.parent))
            known = path.stem in INIT or any(re.fullmatch(a, name) for a in ALIKE)
            if path.suffix in CODE and not known and not MADE & {*name.split("/")}:
                yield path, name


def test_the_layout_names_every_file():
    missing = {
        name
        for path, name in laid_out()
        if not re.search(rf"\b{path.stem}\b", LAYOUT.get(name.rpartition("/")[0], ""))
    }
    assert not missing, "the layout in CONTRIBUTING.md has to name these"


def test_every_folder_in_the_layout_is_there():
    assert {name for name in LAYOUT if not (ROOT.parent / name).is_dir()} == set()


GLOSSARY = re.findall(r"^\| ([^|]+) \| [^|]+ \| `(.+)` \|$",
                      CONTRIBUTING.partition("\n## Glossary\n")[2], re.M)  # fmt: skip


def test_the_glossary_is_in_alphabetical_order():
    words = [word for word, _ in GLOSSARY]
    assert len(words) > 20
    assert words == sorted(words)


@pytest.mark.parametrize(("word", "path"), GLOSSARY)
def test_a_word_of_the_glossary_is_in_the_file_that_it_names(word, path):
    text = (ROOT.parent / path).read_text("utf-8")
    text = re.sub(r"\n( \*|#)? +|_", " ", text)  # of comments, and of names
    assert re.search(rf"\b{word}s?\b", text, re.IGNORECASE)


# ---- The groups of arguments ---------------------------------------------------------


def test_the_c_module_has_the_groups_of_the_package():
    ours = {
        name: list(group._fields)
        for name, group in vars(_options).items()
        if hasattr(group, "_fields")
    }
    assert _attnpy.groups() == ours


@pytest.mark.parametrize("option", _options.Options._fields[:-1])
def test_attention_gives_each_option_its_place(option, monkeypatch):
    calls = []
    recorder = SimpleNamespace(attention=lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(_attention, "_attnpy", recorder)
    mark = object()
    _attention.attention(1, 2, 3, **{option: mark})
    query, key, value, options = calls[0]
    assert (query, key, value) == (1, 2, 3)
    assert _options.Options(*options) == _options.Options(**{option: mark})


def test_the_types_of_options_are_those_of_the_group():
    fields = typing.get_type_hints(_options.Options, vars(_typing))
    hints = typing.get_type_hints(_typing.PlanOptions)
    assert hints == {name: hint for name, hint in fields.items() if name != "tier"}
    assert list(typing.get_args(_typing.OptionsTuple)) == list(fields.values())


def test_tiers_that_tests_leave_out_have_the_kernels_of_others():
    text = Path(ROOT.parent, "csrc/core/tiers.c").read_text("utf-8")
    table = text[text.index("attn_tier tiers[]") : text.index("const attn_tier *\n")]
    name, kernel, other = r'\{"(\w+)", \w+', r",\s+&(\w+)", r",\s+(\S+)"
    rows = re.findall(
        f"{name}{kernel * 2}{other}{kernel}{other}{kernel}{other}}}", table
    )
    assert len(rows) == table.count("attn_cpu_has")
    tiers = {name: kernels for name, *kernels in rows}
    plain = tiers.keys() - ADD_INTEGERS - ADD_BFLOAT16
    assert len({tuple(tiers[name][:2]) for name in plain}) == len(plain)
    for name in ADD_INTEGERS | ADD_BFLOAT16:
        assert tiers[name][:2] in [tiers[other][:2] for other in plain]
        assert (tiers[name][2] == "NULL") == (name in ADD_INTEGERS)
