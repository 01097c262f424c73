"""The notebooks run from top to bottom, and are stored with their outputs."""

from pathlib import Path

import pytest
from support import minilm

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
USING_MINILM = {"05_real_model"}


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.quick
def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path):
    if path.stem in USING_MINILM:
        minilm.require()
    nbclient.NotebookClient(
        nbformat.read(path, as_version=4),
        kernel_name="python3",
        timeout=300,
        shutdown_kernel="immediate",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()


@pytest.mark.quick
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_with_its_outputs(path):
    cells = code_cells(nbformat.read(path, as_version=4))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert outputs
    assert all(output.output_type != "error" for output in outputs)
