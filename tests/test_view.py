"""The interactive view: what is in its page, and what it does in a browser."""

import base64
import html
import importlib.util
import json
import os
import re
import shutil
import stat

import numpy as np
import pytest
from support.arrays import normal, random_weights
from support.tutorial import WORDS

import attnpy
from attnpy.view import head_view

# Each would end a script, run as one, or vanish, if it were not shown as it is.
TOKENS = [
    "</script><script>window.broken = 1</script>",
    "<img src=x onerror='window.broken = 1'>",
    "<!-- <script>",
    "&amp;\"'",
    "{{data}} {{title}}",
    "line\nbreak\u2028\u2029",
    "\N{GRINNING FACE} \udc80 \N{HEBREW LETTER ALEF}",
    "$x_1$",
]
SHOWN = [
    *TOKENS[:5],
    r"line\nbreak\u2028\u2029",
    "\N{GRINNING FACE} \\udc80 \N{HEBREW LETTER ALEF}",
    "$x_1$",
]
PROGRAMS = ("chromium", "chromedriver")


def page_of(view):
    """The page inside the frame that a notebook shows."""
    frame = re.fullmatch(
        r'<iframe srcdoc="([^"]*)"[^<>]*></iframe>', view._repr_html_()
    )
    return html.unescape(frame[1])


def data_of(view):
    """The data inside the page."""
    found = re.findall(
        r'<script type="application/json".*?>(.*?)</script>', page_of(view)
    )
    assert len(found) == 1
    return json.loads(found[0])


def weights_of(view):
    data = data_of(view)
    codes = np.frombuffer(base64.b64decode(data["weights"]), "<u2")
    weights = np.where(codes == 65535, np.nan, codes / 10000)
    return weights.reshape(data["shape"])


@pytest.mark.quick
@pytest.mark.parametrize("shape", [(4, 5), (3, 4, 5), (2, 3, 4, 5), (1, 1)])
def test_page_has_the_weights_to_four_decimals(shape):
    weights = random_weights(*shape)
    view = head_view(weights, range(shape[-2]), range(shape[-1]))
    expected = weights.reshape((1, 1, *shape)[-4:])
    assert weights_of(view).shape == expected.shape
    np.testing.assert_allclose(weights_of(view), expected, rtol=0, atol=0.5001e-4)


@pytest.mark.quick
def test_page_has_nan_zero_and_one():
    weights = np.array([[0, 1, np.nan]])
    np.testing.assert_array_equal(
        weights_of(head_view(weights, ["a"], list("xyz")))[0, 0], weights
    )


@pytest.mark.quick
def test_any_dtype_of_weights_is_taken(dtype):
    weights = random_weights(2, 3, 3).astype(dtype)
    shown = weights_of(head_view(weights, ["a", "b", "c"]))
    np.testing.assert_allclose(shown[0], weights.astype(float), atol=0.5001e-4)


@pytest.mark.quick
def test_key_tokens_are_the_query_tokens_unless_given():
    data = data_of(head_view(random_weights(5, 5), WORDS))
    assert (data["queries"], data["keys"]) == (WORDS, WORDS)
    data = data_of(head_view(random_weights(5, 2), WORDS, iter(["x", 7])))
    assert (data["queries"], data["keys"]) == (WORDS, ["x", "7"])


@pytest.mark.quick
def test_tokens_and_title_cannot_leave_their_place():
    hostile = head_view(random_weights(8, 8), TOKENS, title="".join(TOKENS))
    harmless = head_view(random_weights(8, 8), ["a"] * 8, title="a")
    assert data_of(hostile)["queries"] == SHOWN
    assert data_of(hostile)["title"] == "".join(TOKENS)
    assert page_of(hostile).isascii()
    # The same elements as without them: no more tags, comments or scripts.
    tags = [re.findall(r"<[/!a-z]", page_of(view)) for view in (hostile, harmless)]
    assert tags[0] == tags[1]


@pytest.mark.quick
def test_page_names_no_other_resource():
    page = page_of(head_view(random_weights(5, 5), WORDS))
    assert not re.search(r"https?:|//[a-z]|(?<!-)\b(src|href|url|import|fetch)\b", page)
    assert "default-src 'none'" in page


def test_large_model_stays_below_two_megabytes():
    view = head_view(random_weights(12, 12, 64, 64), range(64))
    assert len(view._repr_html_()) < 2e6


@pytest.mark.quick
def test_save_writes_the_page(tmp_path):
    view = head_view(random_weights(8, 8), TOKENS)
    path = tmp_path / "attention.html"
    path.write_text("old")
    view.save(path)
    view.save(str(path))
    assert path.read_bytes().decode("ascii") == page_of(view)
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.quick
def test_save_keeps_the_mode_of_a_file_that_it_replaces(tmp_path):
    path = tmp_path / "attention.html"
    path.touch()
    path.chmod(0o600)
    head_view(random_weights(5, 5), WORDS).save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.quick
def test_failed_save_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "attention.html"
    path.write_text("old")

    def fail(*paths):
        raise OSError("disk is gone")

    view = head_view(random_weights(5, 5), WORDS)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="disk is gone"):
        patch.setattr(os, "replace", fail)
        view.save(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == [path.name]
    with pytest.raises(FileNotFoundError):
        view.save(tmp_path / "missing" / "attention.html")


@pytest.mark.quick
@pytest.mark.parametrize(
    ("weights", "queries", "keys", "kind", "message"),
    [
        (
            np.ones(3),
            WORDS,
            None,
            ValueError,
            r"weights: expected \(Lq, Lk\) or .*\(3,\)",
        ),
        (np.ones((2, 0)), "ab", None, ValueError, r"weights: .*empty.*\(2, 0\)"),
        (np.ones((2, 2), complex), "ab", None, TypeError, "weights: .*complex128"),
        ([[0.5, -0.5]], ["a"], WORDS, ValueError, "weights: .*below 0.*-0.5"),
        ([[0.5, 3]], ["a"], ["a", "b"], ValueError, "weights: .*above 1.*3"),
        ([[0.5, np.inf]], ["a"], ["a", "b"], ValueError, "weights: .*infinite.*inf"),
        (np.ones((2, 2)), "ab", None, TypeError, "query_tokens: .*sequence.*str"),
        (np.ones((2, 2)), WORDS, None, ValueError, "query_tokens: expected 2, got 5"),
        (np.ones((5, 2)), WORDS, WORDS, ValueError, "key_tokens: expected 2, got 5"),
        (np.ones((5, 2)), WORDS, None, ValueError, "key_tokens: expected 2, got none"),
    ],
)
def test_wrong_arguments_are_errors_that_name_them(
    weights, queries, keys, kind, message
):
    with pytest.raises(kind, match=f"^{message}"):
        head_view(weights, queries, keys)


# From here on in a browser.


def missing_for_a_browser():
    """What the tests below lack, if anything."""
    if importlib.util.find_spec("selenium") is None:
        return "no selenium: pip install selenium"
    for program in PROGRAMS:
        if shutil.which(program) is None:
            return f"no {program}: on Debian, apt-get install chromium chromium-driver"
    return None


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A headless Chromium."""
    missing = missing_for_a_browser()
    if missing and os.environ.get("ATTNPY_TEST_BROWSER") == "1":
        pytest.fail(missing)
    if missing:
        pytest.skip(missing)
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which(PROGRAMS[0])
    for argument in (
        "--headless=new",
        "--no-sandbox",  # it cannot have one as root
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--window-size=1000,800",
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):
        options.add_argument(argument)
    options.set_capability(
        "goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"}
    )
    service = webdriver.ChromeService(executable_path=shutil.which(PROGRAMS[1]))
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


@pytest.fixture
def show(browser, tmp_path):
    """Open a view's page, and require that it asked for no other and had no errors."""
    path = tmp_path / "page.html"

    def open_page(page):
        page.save(path) if hasattr(page, "save") else path.write_text(page)
        requests(browser), errors(browser)  # of the page before
        browser.get(path.as_uri())
        return browser

    yield open_page
    assert requests(browser) <= {path.as_uri(), "about:srcdoc"}
    assert errors(browser) == []


def requests(browser):
    """What pages have asked for since the last call."""
    log = [json.loads(entry["message"]) for entry in browser.get_log("performance")]
    urls = {
        entry["message"]["params"]["request"]["url"]
        for entry in log
        if entry["message"]["method"] == "Network.requestWillBeSent"
    }
    # Chromium starts with a page of its own.
    return {url for url in urls if not url.startswith("chrome:")}


def errors(browser):
    """What has gone wrong in pages since the last call."""
    log = browser.get_log("browser")
    return [entry["message"] for entry in log if entry["level"] == "SEVERE"]


def find(browser, selector):
    return browser.find_elements("css selector", selector)


def texts(browser, selector):
    return [node.get_property("textContent") for node in find(browser, selector)]


def point_at(browser, query):
    from selenium.webdriver import ActionChains

    node = find(browser, "#queries .token")[query]
    ActionChains(browser).move_to_element(node).perform()


def numbers(browser):
    return [float(text) for text in texts(browser, ".weight")]


def opacities(browser):
    """How strongly each head's strip of each key is coloured."""
    script = """return [...document.querySelectorAll("#keys .shares")].map(
        (shares) => [...shares.children].map((share) => Number(share.style.opacity)))"""
    return np.array(browser.execute_script(script))


def test_a_request_and_an_error_would_be_noticed(browser, tmp_path):
    path = tmp_path / "page.html"
    path.write_text("<img src='file:///missing.png'><script>missing()</script>")
    browser.get(path.as_uri())
    assert "file:///missing.png" in requests(browser)
    assert any("missing is not defined" in error for error in errors(browser))


def test_pointing_at_a_query_shows_its_weights(show):
    weights = random_weights(5, 7)
    browser = show(head_view(weights, WORDS, range(7), title="A title"))
    assert texts(browser, "h1") == ["A title"]
    assert texts(browser, ".weight") == [""] * 7
    for query in (2, 4):
        point_at(browser, query)
        assert texts(browser, ".token.chosen") == [WORDS[query]]
        np.testing.assert_allclose(numbers(browser), weights[query], atol=0.51e-4)
        np.testing.assert_allclose(
            opacities(browser)[:, 0], weights[query], atol=0.51e-4
        )
        top = str(weights[query].argmax())
        assert texts(browser, "#keys .top .token") == [top]
        assert f"{WORDS[query]} attends to {top} " in texts(browser, "#said")[0]


def test_layer_and_head_choose_the_weights(show):
    weights = random_weights(3, 4, 5, 5)
    browser = show(head_view(weights, WORDS))
    buttons = find(browser, "#heads button")
    assert [button.text for button in buttons] == ["all", "0", "1", "2", "3"]
    for layer in (0, 2):
        find(browser, f'#layers option[value="{layer}"]')[0].click()
        for head in (None, 3, 0):
            buttons[0 if head is None else head + 1].click()
            assert [b.get_attribute("aria-pressed") == "true" for b in buttons] == [
                head == h for h in (None, 0, 1, 2, 3)
            ]
            point_at(browser, 1)
            heads = weights[layer, :, 1] if head is None else weights[layer, [head], 1]
            np.testing.assert_allclose(
                numbers(browser), heads.mean(axis=0), atol=1.01e-4
            )
            np.testing.assert_allclose(opacities(browser), heads.T, atol=0.51e-4)


def test_keyboard_does_what_pointing_does(show):
    weights = random_weights(5, 5)
    browser = show(head_view(weights, WORDS))
    from selenium.webdriver import ActionChains, Keys

    for keys, query in ((Keys.TAB, 0), (Keys.TAB, 1), (Keys.DOWN, 2), (Keys.UP, 1)):
        ActionChains(browser).send_keys(keys).perform()
        assert texts(browser, ".token.chosen") == [WORDS[query]]
        np.testing.assert_allclose(numbers(browser), weights[query], atol=0.51e-4)
    point_at(browser, 4)
    assert texts(browser, ".token.chosen") == [WORDS[4]]
    ActionChains(browser).move_to_element(find(browser, "h2")[2]).perform()
    assert texts(browser, ".token.chosen") == [WORDS[1]], "back to the focus"


def test_lines_join_a_query_with_its_keys(show):
    weights = np.eye(5)[[1, 0, 2, 4, 4]]
    browser = show(head_view(weights, WORDS))
    # Rows of the canvas that are coloured at its left and at its right edge.
    script = """
        const done = arguments[0];
        requestAnimationFrame(() => requestAnimationFrame(() => {
            const canvas = document.querySelector("canvas");
            const context = canvas.getContext("2d");
            const rows = (x) => [0, 1, 2, 3, 4].filter((row) => {
                const height = canvas.height / 5;
                const pixels = context.getImageData(x, row * height, 1, height).data;
                return pixels.some((part, i) => i % 4 === 3 && part > 100);
            });
            done([rows(2), rows(canvas.width - 3)]);
        }))"""
    assert browser.execute_async_script(script) == [[0, 1, 2, 3, 4], [0, 1, 2, 4]]
    point_at(browser, 3)
    assert browser.execute_async_script(script) == [[3], [4]]


def test_tokens_appear_as_they_are_and_none_runs(show):
    browser = show(head_view(random_weights(8, 8), TOKENS, title=TOKENS[0]))
    assert texts(browser, "#queries .token") == SHOWN
    assert texts(browser, "#keys .token") == SHOWN
    assert texts(browser, "h1") == [TOKENS[0]]
    assert browser.title == TOKENS[0]
    assert browser.execute_script("return window.broken") is None
    assert find(browser, "img") == []
    point_at(browser, 0)
    assert TOKENS[0] in texts(browser, "#said")[0]


def test_nan_and_a_query_that_sees_nothing_are_shown(show):
    weights = [[0, 0, 0], [np.nan, 0.5, 0.5], [0, 1, 0]]
    browser = show(head_view(weights, WORDS[:3]))
    point_at(browser, 0)
    assert numbers(browser) == [0, 0, 0]
    assert texts(browser, "#said") == ["Write attends to nothing"]
    point_at(browser, 1)
    assert texts(browser, ".weight") == ["NaN", "0.5000", "0.5000"]


def test_two_views_in_one_notebook_do_not_interfere(show):
    first, second = random_weights(5, 5), random_weights(2, 5, 5)
    views = [head_view(weights, WORDS) for weights in (first, second)]
    # Put in place as a notebook does it: the text becomes elements, scripts do not run.
    outputs = json.dumps("".join(view._repr_html_() for view in views))
    outputs = outputs.replace("<", r"\u003c")
    browser = show(f"<body><script>document.body.innerHTML = {outputs}</script>")
    frames = find(browser, "iframe")
    for frame, n_buttons in zip(frames, (2, 3), strict=True):
        browser.switch_to.frame(frame)
        buttons = find(browser, "#heads button")
        assert len(buttons) == n_buttons
        if n_buttons == 3:
            buttons[2].click()
        find(browser, "#queries .token")[2].click()
        browser.switch_to.default_content()
    for frame, weights in zip(frames, (first, second[1]), strict=True):
        browser.switch_to.frame(frame)
        find(browser, "#queries .token")[2].send_keys("")  # gives it the focus
        np.testing.assert_allclose(numbers(browser), weights[2], atol=0.51e-4)
        browser.switch_to.default_content()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(show, scheme):
    browser = show(head_view(random_weights(2, 5, 5), WORDS))
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    point_at(browser, 2)
    colors = [
        find(browser, selector)[0].value_of_css_property("color")
        for selector in ("body", ".token.chosen", ".weight", "#said", "#heads button")
    ]
    back = find(browser, "body")[0].value_of_css_property("background-color")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert (luminance(back) > 0.5) == (scheme == "light")
    for color in colors:
        # 4.5 to 1 is what WCAG 2 asks for, in 1.4.3.
        low, high = sorted((luminance(color), luminance(back)))
        assert (high + 0.05) / (low + 0.05) >= 4.5


def luminance(color):
    """The relative luminance of "rgb(r, g, b)", from 0 to 1, as WCAG 2 defines it."""
    parts = np.array([int(part) for part in re.findall(r"\d+", color)[:3]]) / 255
    linear = np.where(parts <= 0.03928, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def test_weights_of_attention_are_taken_as_they_come(show):
    query = normal(4, 5, 8)
    _, weights = attnpy.attention(query, query, query, causal=True, return_weights=True)
    browser = show(head_view(weights, WORDS))
    point_at(browser, 4)
    np.testing.assert_allclose(
        numbers(browser), weights[:, 4].mean(axis=0), atol=1.01e-4
    )
