"""The search of the site: what newcomers ask leads to the page that answers.

`python docs/serve.py --build` builds the site first; without it nothing is asked.
"""

import os
import shutil
from urllib.parse import quote

import pytest
from support import pages

SITE = pages.DOCS.parent / "build" / "site"
ANSWERS = {
    "install": "install",
    "windows": "install",
    "docker": "install",
    "rerank": "reranking",
    "cross-encoder": "reranking",
    "int8": "guide/quantised_weights",
    "quantize": "guide/quantised_weights",
    "fine-tune": "guide/fine_tuning",
    "lora": "guide/fine_tuning",
    "mask": "guide/masks_and_lengths",
    "padding": "guide/masks_and_lengths",
    "kv cache": "guide/caches_and_decoding",
    "llama": "models",
    "save": "models",
    "gguf": "guide/language_models",
    "chat": "guide/language_models",
    "image": "images",
    "clip": "images",
    "heatmap": "gallery/index",
    "embedding": "sentences",
    "semantic search": "sentences",
    "pandas": "sentences",
    "pytorch": "guide/coming_from_pytorch",
    "translate": "tasks",
    "gradient": "guide/training",
    "threads": "guide/threads",
    "bfloat16": "guide/dtypes",
    "benchmark": "performance",
    "gpu": "faq",
}


@pytest.fixture(scope="module")
def browser():
    """Chromium without a window."""
    needed = [shutil.which(name) for name in ("chromium", "chromedriver")]
    wanted = os.environ.get("ATTNPY_TEST_SITE")
    there = all(needed) and (SITE / "searchindex.js").exists()
    if not there and not wanted:
        pytest.skip("no site in build/site, or no Chromium")
    assert there
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = needed[0]
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    service = webdriver.ChromeService(needed[1])
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


def first_pages(browser, question):
    """The pages that the search answers with, the best first."""
    from selenium.webdriver.support.wait import WebDriverWait

    browser.get(f"{(SITE / 'search.html').as_uri()}?q={quote(question)}")
    WebDriverWait(browser, 60).until(
        lambda b: b.execute_script(
            "return document.querySelectorAll('#search-results li a').length > 0"
            " || !!document.querySelector('#search-results .search-summary')"
        )
    )
    links = browser.execute_script(
        "return [...document.querySelectorAll('#search-results li > a')]"
        ".map((link) => link.getAttribute('href'))"
    )
    return [link.partition("#")[0].partition("?")[0] for link in links]


def test_what_newcomers_ask_leads_to_the_page_that_answers(browser):
    wrong = {}
    for question, page in ANSWERS.items():
        found = first_pages(browser, question)
        if found[:1] != [f"docs/{page}.html"]:
            wrong[question] = found[:3]
    assert len(wrong) <= len(ANSWERS) // 10, wrong


def test_tables_of_measurements_are_no_answers(browser):
    for question in ("mask", "windows", "padding"):
        found = first_pages(browser, question)
        assert not [page for page in found if page.startswith("docs/performance/")]


@pytest.mark.quick
def test_a_word_of_no_page_has_no_answer(browser):
    # Shows that the tests above can fail.
    assert first_pages(browser, "qwertyuiop") == []
