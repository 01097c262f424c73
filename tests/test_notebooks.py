"""The notebooks run from top to bottom, and are stored with their outputs."""

import re
from pathlib import Path

import numpy as np
import pytest
from support import minilm, smollm2

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
USING_MINILM = {"05_real_model"}
USING_SMOLLM2 = {"07_language_model"}
# A short version of what takes long, which has not learned enough: what is replaced.
SHORTER = {
    "06_training": {
        "n_steps = 800": "n_steps = 20",
        "n_steps = 1000": "n_steps = 30",
    }
}
LINK = re.compile(r"\]\(([^)#]+\.ipynb)\)")
NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:e[-+]\d+)?")
MAX_BYTES = 700_000  # of a stored notebook, with its pictures


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(notebook):
    """What each cell prints."""
    return [
        "".join(each.text for each in cell.outputs if each.get("name") == "stdout")
        for cell in code_cells(notebook)
    ]


@pytest.mark.quick
def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_prints_what_is_stored(path, tmp_path):
    if path.stem in USING_MINILM:
        minilm.require()
    if path.stem in USING_SMOLLM2:
        smollm2.require()
    notebook = nbformat.read(path, as_version=4)
    stored = printed(notebook)
    for long, short in SHORTER.get(path.stem, {}).items():
        holding = [cell for cell in code_cells(notebook) if long in cell.source]
        assert len(holding) == 1, long
        holding[0].source = holding[0].source.replace(long, short)
    nbclient.NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=300,
        shutdown_kernel="immediate",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    if path.stem not in SHORTER:
        for now, then in zip(printed(notebook), stored, strict=True):
            assert NUMBER.sub("0", now) == NUMBER.sub("0", then)
            numbers = [[float(n) for n in NUMBER.findall(text)] for text in (now, then)]
            # NumPy's own sums may have other last bits elsewhere.
            np.testing.assert_allclose(*numbers, rtol=0.02, atol=0.01)


@pytest.mark.quick
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_with_its_outputs(path):
    cells = code_cells(nbformat.read(path, as_version=4))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert outputs
    assert all(output.output_type != "error" for output in outputs)


@pytest.mark.quick
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_leads_to_the_one_before_and_the_next(path):
    i = NOTEBOOKS.index(path)
    neighbours = [other.name for other in NOTEBOOKS[max(i - 1, 0) : i + 2]]
    neighbours.remove(path.name)
    cells = nbformat.read(path, as_version=4).cells
    assert LINK.findall(cells[0].source)[: len(neighbours)] == neighbours
    assert LINK.findall(cells[-1].source)[-len(neighbours) :] == neighbours
    linked = {link for cell in cells for link in LINK.findall(cell.source)}
    assert linked <= {other.name for other in NOTEBOOKS}


@pytest.mark.quick
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_notebook_is_small(path):
    assert path.stat().st_size < MAX_BYTES


@pytest.mark.quick
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_pictures_are_stored_for_pages_that_run_nothing(path):
    for cell in code_cells(nbformat.read(path, as_version=4)):
        for output in cell.outputs:
            data = output.get("data", {})
            drawn = data.get("text/plain", "").startswith(
                ("<Figure", "View(", "Diagram(")
            )
            assert not drawn or {"image/png", "image/svg+xml"} & data.keys()
