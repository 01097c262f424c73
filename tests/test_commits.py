"""`.ci/commits`: which messages of commits it accepts."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.quick,
    pytest.mark.skipif(shutil.which("git") is None, reason="no git"),
]

ROOT = Path(__file__).parents[1]
BODY = "\n\nThe reason."


def git(folder, *arguments):
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True)


@pytest.fixture
def repository(tmp_path):
    """A repository whose first commit adds the check."""
    (tmp_path / ".ci").mkdir()
    for name in [".ci/commits", "CONTRIBUTING.md"]:
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "Before the rule")
    return tmp_path


def check(folder, *arguments):
    command = [sys.executable, ".ci/commits", *arguments]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return result.returncode, result.stdout


def commit(folder, message):
    git(folder, "commit", "--quiet", "--allow-empty", "--message", message)


@pytest.mark.parametrize(
    "subject",
    ["kernel: skip hidden blocks", "docs: " + 66 * "x", "api: refuse a: b"],
)
def test_a_subject_with_an_area_and_a_body_passes(repository, subject):
    commit(repository, subject + BODY)
    assert check(repository) == (0, ".ci/commits: 1 messages checked, 0 faults\n")


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ("Skip hidden blocks" + BODY, "'area: summary'"),
        ("kernels: skip hidden blocks" + BODY, "'area: summary'"),
        ("kernel:skip hidden blocks" + BODY, "'area: summary'"),
        ("docs: " + 67 * "x" + BODY, "at most 72 characters, got 73"),
        ("kernel: skip hidden blocks", "a body that says why"),
        ("kernel: skip hidden blocks\nThe reason.", "a body that says why"),
    ],
)
def test_other_messages_are_faults(repository, message, complaint):
    commit(repository, "tests: a good one" + BODY)
    commit(repository, message)
    status, output = check(repository)
    assert status == 1
    assert complaint in output
    assert output.endswith("2 messages checked, 1 faults\n")


def test_what_is_older_than_the_check_or_a_tag_is_not_checked(repository):
    assert check(repository) == (0, ".ci/commits: 0 messages checked, 0 faults\n")
    commit(repository, "A bad one that was released")
    git(repository, "tag", "v1.0.0")
    commit(repository, "tests: a good one" + BODY)
    assert check(repository) == (0, ".ci/commits: 1 messages checked, 0 faults\n")
    assert check(repository, "HEAD~2")[0] == 1


def test_a_folder_without_a_history_has_nothing_to_check(repository):
    subprocess.run(["rm", "-r", repository / ".git"], check=True)
    status, output = check(repository)
    assert (status, "no history to check" in output) == (0, True)
