"""`pytest -m quick` runs something of everything."""

import pytest

WITHOUT = {
    "test_install.py": "makes an environment and installs into it",
    "test_minilm.py": "needs a model that is installed on its own",
}


@pytest.mark.quick
def test_every_file_has_quick_tests(quick_files):
    without = {name for name, n_tests in quick_files.items() if n_tests == 0}
    assert without <= WITHOUT.keys()
