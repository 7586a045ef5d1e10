"""The served page in Chromium, used by keyboard, mouse and touch.

Runs where a Chromium is found; ZIPFLM_NEED_CHROMIUM=1 makes its absence a failure.
"""

import json
from urllib.parse import urlencode

import pytest
from serving.browser import Browser, needs_chromium
from serving.fake_server import ALTERNATIVES, UNKNOWN, FakeServer, bits_of
from serving.services import Running

pytestmark = needs_chromium

TEXT = "The snow fell on the old house."
WORDS = "[...document.querySelectorAll('.mirror .word')]"
ALTERNATIVE_NAMES = (
    "[...document.querySelectorAll('.alternatives .name')].map((node) => node.textContent)"
)
SETTLED = (
    "document.body?.dataset.ready === 'true' && isFresh() && "
    "panel.getAttribute('aria-busy') === 'false'"
)


class PageBrowser(Browser):
    """A browser with helpers for the served page."""

    server = None

    def show(self, text=TEXT, *, waits=True, **options):
        """Open with this text or the default one; options are for the link and the browser."""
        link = {"text": text} if text is not None else {}
        link |= {name: options.pop(name) for name in ("model", "with") if name in options}
        self.open(self.server.url + (f"#{urlencode(link)}" if link else ""), **options)
        if waits:
            self.settle()

    def settle(self):
        """Wait until the page shows the scores of the text."""
        self.wait_for(SETTLED)

    @property
    def text(self):
        return self.evaluate("field.value")

    @property
    def words(self):
        return self.evaluate(f"{WORDS}.map((node) => node.textContent)")

    @property
    def chosen(self):
        return self.shown("#panel-word")

    def shown(self, selector):
        """The text of an element, or an empty string if it is not visible."""
        return self.evaluate(
            f"(() => {{ const node = document.querySelector({selector!r});"
            " return node && node.offsetParent !== null ? node.innerText : ''; })()"
        )

    def word(self, text):
        """An expression for the element of a word."""
        return f"({WORDS}.find((node) => node.textContent === {json.dumps(text)}))"

    def alternative(self, text):
        return (
            "([...document.querySelectorAll('.alternatives button')]"
            f".find((node) => node.querySelector('.name').textContent === {json.dumps(text)}))"
        )

    def select(self, text):
        self.click(self.word(text))
        self.settle()

    def classes(self):
        pairs = f"{WORDS}.map((node) => [node.textContent, node.className])"
        return self.evaluate(f"Object.fromEntries({pairs})")

    def focused(self):
        """The id or text of the focused element."""
        return self.evaluate("document.activeElement.id || document.activeElement.innerText")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with PageBrowser(tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture(scope="module")
def fake_server():
    with FakeServer() as started:
        yield started


@pytest.fixture
def page(browser, fake_server):
    fake_server.reset()
    browser.server = fake_server
    yield browser
    assert browser.problems == []
    assert all(url.startswith((fake_server.url, "data:", "about:")) for url in browser.requests)


def test_page_starts_with_an_example(page):
    page.show(None)
    assert len(page.words) > 10
    assert page.chosen == "Americans"  # the most surprising
    assert page.shown("#totals").count("\n") > 6
    assert page.shown("#readout").startswith("Americans 17.0 bits")
    assert page.evaluate("location.hash") == ""


def test_words_are_colored_by_surprisal(page):
    page.show()
    for word, classes in page.classes().items():
        step = min(8, int(bits_of(word, "adp-t") // 2))
        assert f"s{step}" in classes.split(), word
    page.click("#numbers")
    shown = "getComputedStyle(document.querySelector('.mirror .word'), '::before').content"
    assert page.evaluate(shown) == f'"{bits_of("The", "adp-t"):.0f}"'


def test_totals(page):
    page.show(f"snow fell\non {UNKNOWN}")
    words = ["snow", "fell", "</s>", "on", UNKNOWN, "</s>"]
    bits = sum(bits_of(word, "adp-t") for word in words) / len(words)
    assert page.shown("[data-total=bits] b") == f"{bits:.2f}"
    assert page.shown("[data-total=perplexity] b") == f"{2**bits:.0f}"
    assert page.shown("[data-total=words] b") == "4"
    assert "2 line ends" in page.shown("[data-total=words]")
    assert page.shown("[data-total=unknown] b") == "1"
    assert "unknown" in page.classes()[UNKNOWN]


def test_mirror_matches_the_text_field(page):
    """Both wrap lines at the same places."""
    lines = [" ".join(f"word{i}{'x' * (i * j % 9)}" for i in range(60)) for j in range(3)]
    arabic = "\u0643\u0644\u0645\u0629 snow " * 30
    page.show("\n\n".join([*lines, arabic]) + "   \n" + "unbreakable" * 20 + "\n")
    heights = "[field.scrollHeight, mirror.scrollHeight, field.clientHeight]"
    widths = "[field.scrollWidth, mirror.scrollWidth, field.clientWidth]"
    for width in (1400, 700, 400, 320):
        page.resize(width)
        for _ in range(2):  # without and with numbers under the words
            assert len(set(page.evaluate(heights))) == 1, width
            assert len(set(page.evaluate(widths))) == 1, width
            page.evaluate("void byId('numbers').click()")


def test_colors_words_while_typing(page):
    page.show("", waits=False)
    page.wait_for("view.first !== null")
    page.click("#text")
    page.type("snow fell, quietly")
    page.settle()
    assert page.words == ["snow", "fell", ",", "quietly"]
    assert page.chosen == "quietly"
    assert page.evaluate("field.selectionStart") == len("snow fell, quietly")
    assert "text=snow+fell" in page.evaluate("location.hash")


def test_drops_late_responses(page):
    page.show("snow")
    page.server.delay = lambda body: 0.8 if body["text"] == "snow f" else 0.0
    page.evaluate("field.focus(), field.setSelectionRange(4, 4)")
    page.type(" f")
    page.wait_for("pending && !pending.signal.aborted")
    page.evaluate("void (window.first = pending)")
    page.type("ell")
    assert page.evaluate("first.signal.aborted") is True
    page.settle()
    assert page.words == ["snow", "fell"]
    page.evaluate("new Promise((resolve) => setTimeout(resolve, 900))")
    assert page.words == ["snow", "fell"] and page.shown("#notice") == ""


def test_input_method_composition(page):
    page.show("snow ")
    page.evaluate("field.focus(), field.setSelectionRange(5, 5)")
    asked = len(page.server.requests)
    page.compose("ni")
    page.compose("niho")
    page.evaluate("new Promise((resolve) => setTimeout(resolve, 400))")
    assert page.text == "snow niho" and len(page.server.requests) == asked
    page.commit("\u65e5\u672c")
    page.settle()
    assert page.words == ["snow", "\u65e5\u672c"]


def test_page_escapes_html(page):
    text = "<script>alert(1)</script> <img/src=x/onerror=alert(1)> <unk> </s> &amp;"
    page.show(text)
    assert "".join(page.words) == text.replace(" ", "").replace(".", "")
    page.select("<unk>")
    assert page.chosen == "<unk>"
    page.click("#all-words summary")
    page.wait_for("byId('table').innerText.includes('<script>alert(1)</script>')")
    assert "<script>" in page.shown(".alternatives")
    assert page.evaluate("document.querySelectorAll('script, img').length") == 1


def test_line_ends_can_be_selected(page):
    page.show("snow fell\n\non it\n")
    assert page.evaluate("document.querySelectorAll('.mirror .end').length") == 3
    assert page.words == ["snow", "fell", "on", "it"]
    page.evaluate("field.focus(), field.setSelectionRange(10, 10)")  # the empty line
    page.wait_for(SETTLED + " && view.rows[view.chosen].isEnd")
    assert page.chosen == "\u21b5 end of line"
    assert len(page.evaluate("document.querySelector('.alternatives').children")) == 10


def test_click_shows_details_of_a_word(page):
    page.show()
    page.select("house")
    assert page.chosen == "house"
    assert page.shown("[data-fact=surprise] td") == "9.00 bits"
    assert page.shown("[data-fact=probability] td") == "0.20% 1 in 512"
    assert page.shown("[data-fact=rank] td") == "16th of 5,000"
    assert page.shown("[data-source=model]") == "model 75.0%"
    assert "on the old barn" in page.shown("[data-source=neighbors]")
    assert page.shown("[data-fact=count] td") == "10 in the vocabulary"
    band = page.shown("[data-fact=band] td")
    assert "2 of 2" in band and "rare: words 1,000 to 5,000 by frequency" in band
    assert "on the old" in page.shown("#panel-context")
    names = page.evaluate(ALTERNATIVE_NAMES)
    assert [name.split(" ")[0] for name in names[:3]] == list(ALTERNATIVES[:3])
    assert page.evaluate("stripBox.getAttribute('aria-valuetext')").startswith("house: 9.0")


def test_clicked_alternative_replaces_the_word(page):
    page.show()
    page.select("house")
    page.click(page.alternative("fish"))
    assert page.text == "The snow fell on the old fish."
    page.settle()
    assert page.chosen == "fish" and page.words[-2:] == ["fish", "."]
    assert page.evaluate("document.querySelector('.alternatives .same').innerText")[:4] == ("fish")
    page.press("z", control=True)
    assert page.text == TEXT
    page.settle()
    assert page.chosen == "house"


@pytest.mark.parametrize(
    ("word", "other", "expected"),
    [
        ("house", ".", "The snow fell on the old.."),
        ("snow", "<script>", "The <script> fell on the old house."),
        (".", "of", "The snow fell on the old house of"),
        ("snow", "\u21b5 end of line", "The\nfell on the old house."),
    ],
)
def test_spaces_around_alternatives(page, word, other, expected):
    page.show()
    page.select(word)
    page.click(page.alternative(other))
    assert page.text == expected


def test_alternatives_extend_the_text(page):
    page.show("The snow, it")
    page.evaluate("field.focus()")
    page.press("End")
    page.type(" ")
    page.wait_for(SETTLED + " && view.rows[view.chosen].isEnd")
    for other in ("fish", "of", "house", "."):
        page.click(page.alternative(other))
        page.settle()
    assert page.text == "The snow, it fish of house."


def test_hovering_links_words_and_bars(page):
    page.show()
    page.point(page.word("fell"))
    page.wait_for("view.pointed === 2 && strip.pointed === 2")
    assert page.shown("#readout").startswith("fell 7.0 bits")
    left, slot = page.evaluate("[strip.left + canvas.getBoundingClientRect().left, strip.slot]")
    top = page.place("#canvas")[1]
    at = {"x": left + 5.5 * slot, "y": top}
    page.call("Input.dispatchMouseEvent", type="mouseMoved", **at)
    page.wait_for("document.querySelector('.mirror .pointed')?.textContent === 'old'")
    for kind in ("mousePressed", "mouseReleased"):
        page.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)
    page.wait_for("document.getElementById('panel-word').textContent === 'old'")


def test_keyboard_navigation(page):
    page.show()
    for _ in range(20):
        if page.focused() == "text":
            break
        page.press("Tab")
    page.press("Home", control=True)
    page.evaluate("field.setSelectionRange(0, 0)")
    for _ in range(6):
        page.press("ArrowRight")
    page.wait_for("document.getElementById('panel-word').textContent === 'snow'")
    page.settle()
    page.press("ArrowDown", alt=True)
    page.press("ArrowDown")
    assert page.focused().startswith("fish")
    page.press("Enter")
    page.settle()
    assert page.text == "The fish fell on the old house."
    assert page.focused().startswith("fish")  # stays in the list
    page.press("Escape")
    assert page.focused() == "text"
    while page.focused() != "strip":
        page.press("Tab")
    page.press("End")
    page.press("ArrowLeft")
    value = page.evaluate("stripBox.getAttribute('aria-valuetext')")
    assert value == ".: 1.0 bits, 1 in 2.0"


def test_tap_selects_and_second_tap_edits(page):
    page.show(width=400, height=1300, touch=True)
    assert page.shown("#panel-word") == ""
    page.tap(page.word("old"))
    page.wait_for("panel.dataset.open === 'true' && " + SETTLED)
    assert page.chosen == "old" and page.focused() != "text"  # the keyboard stays closed
    page.tap(page.alternative("house"))
    page.wait_for("field.value === 'The snow fell on the house house.'")
    page.settle()
    assert page.focused() != "text"
    page.tap("#take-back")
    page.wait_for(f"field.value === {json.dumps(TEXT)}")
    page.settle()
    assert page.chosen == "old" and page.evaluate("byId('take-back')") is None
    page.tap("#panel-close")
    page.wait_for("panel.dataset.open === 'false'")
    page.tap(page.word("snow"))
    page.wait_for("panel.dataset.open === 'true' && " + SETTLED)
    page.tap(page.word("snow"))
    page.wait_for("document.activeElement === field")


@pytest.mark.parametrize("width", [320, 1400])
def test_page_fits_the_screen(page, width):
    page.show(f"{TEXT}\n{'unbreakable' * 12}", width=width, height=800, touch=width < 1000)
    too_wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    assert not page.evaluate(too_wide)
    page.evaluate("void chooseModels(view.models[0], view.models[1])")
    page.evaluate("void byId('all-words').setAttribute('open', '')")
    page.settle()
    page.evaluate("choose(4, { open: true })")
    page.settle()
    assert not page.evaluate(too_wide)
    box = page.evaluate("panel.getBoundingClientRect().toJSON()")
    assert 0 <= box["left"] and box["right"] <= width


def test_theme(page):
    background, chart = "getComputedStyle(document.body).backgroundColor", "canvas.toDataURL()"
    page.show(dark=True)
    assert page.evaluate(background) == "rgb(19, 20, 23)"
    dark = page.evaluate(chart)
    page.click("#theme")
    assert page.evaluate(background) == "rgb(250, 248, 244)"
    assert page.evaluate(chart) != dark
    page.reload()
    page.settle()
    assert page.evaluate(background) == "rgb(250, 248, 244)"


@pytest.mark.slow
def test_long_texts_stay_fast(page):
    page.show("snow fell on it, " * 1000)  # 5,000 words on one line
    page.evaluate("field.focus(), field.setSelectionRange(40, 40)")
    times = page.evaluate(
        "[...'abcdefghi'].map((letter) => { const begin = performance.now();"
        " document.execCommand('insertText', false, letter); document.body.offsetHeight;"
        " return performance.now() - begin; })"
    )
    assert sorted(times)[4] < 100, times  # about 17 ms on an idle machine
    page.settle()
    assert len(page.words) == 5000 and "abcdefghi" in " ".join(page.words)


def test_comparison_of_two_models(page):
    page.show(f"the snow fell on {UNKNOWN} house")
    page.evaluate("byId('second').value = 'sm', byId('second').dispatchEvent(new Event('change'))")
    page.wait_for("view.answers.length === 2")
    page.settle()
    classes = page.classes()
    for word, ahead in (("the", "a2"), ("fell", "a2"), ("house", "a2"), ("snow", "b1")):
        assert ahead in classes[word].split(), word
    assert {"none", "unknown"} <= set(classes[UNKNOWN].split())
    verdict = page.shown(".verdict")
    # the, fell, house: +1.5 each; snow, on and the line end: -0.75 each.
    assert "ADP-T is 0.38 bits per word less surprised than SM" in verdict
    assert "ADP-T is ahead on 3 of 6 positions, SM on 3" in verdict and "1 word" in verdict
    assert page.shown("[data-total=perplexity]").count("SM") == 1
    assert page.shown("#panel-facts").split("\n")[0].split() == ["ADP-T", "SM"]
    assert "with=sm" in page.evaluate("location.hash")
    page.click("(document.querySelectorAll('#views button')[2])")  # SM alone
    step = int(bits_of("house", "sm") // 2)
    assert f"s{step}" in page.classes()["house"].split()


def test_link_restores_text_and_models(page):
    page.show("a b+c&d=e #f\n100% <g>", **{"model": "sm", "with": "adp-t"})
    assert page.text == "a b+c&d=e #f\n100% <g>"
    link = page.evaluate("location.origin + location.pathname + '#' + fragment()")
    assert link == page.evaluate("location.href")
    page.evaluate("void (location.hash = 'text=snow&model=adp-t')")
    page.wait_for("field.value === 'snow' && " + SETTLED)
    assert page.evaluate("[view.first.id, view.second]") == ["adp-t", None]


def test_copies_link_and_table(page):
    page.show("snow fell", **{"with": "sm"})
    page.evaluate(
        "void Object.defineProperty(navigator, 'clipboard', { value:"
        " { writeText: async (text) => void (window.copied = text) } })"
    )
    page.click("#share")
    link = page.wait_for("window.copied")
    assert link == f"{page.server.url}#text=snow+fell&model=adp-t&with=sm"
    assert page.shown("#share") == "Link copied"
    page.click("#all-words summary")
    page.wait_for("byId('copy-table').offsetParent !== null")
    page.click("#copy-table")
    table = page.wait_for("window.copied.includes('\\t') && window.copied")
    rows = [line.split("\t") for line in table.split("\n")]
    assert [row[0] for row in rows] == ["word", "snow", "fell", "end of line"]
    assert rows[1][-1] == f"{bits_of('snow', 'sm') - bits_of('snow', 'adp-t'):.3f}"


def test_page_with_the_real_service(browser, service, models):
    text = "ba \U0001f409 bila\n\nboro </s> ba"
    browser.open(f"{service.url}/#{urlencode({'text': text, 'with': 'pieces'})}")
    browser.wait_for(SETTLED)
    expected = [model.lm.score(text) for model in models.values()]
    shown = browser.evaluate(
        "view.rows.map(({ word, start, end, isEnd, bits, other }) =>"
        " [isEnd ? '</s>' : field.value.slice(start, end), word, bits, other.bits])"
    )
    for (written, word, *bits), *scored in zip(
        shown, *(each.words for each in expected), strict=True
    ):
        assert written == word == scored[0].word == scored[1].word
        assert bits == pytest.approx([each.surprisal for each in scored], abs=1e-5)
    ends = [row[1] for row in shown].count("</s>")
    assert ends == 4  # one of them is in the text
    assert browser.evaluate("view.rows.filter((row) => row.isEnd).length") == 3
    last = len(shown) - 1
    browser.evaluate(f"choose({last}, {{ open: true }})")
    browser.wait_for(f"view.chosen === {last} && {SETTLED}")
    fact = "document.querySelector('[data-fact=surprise] td').textContent"
    assert browser.evaluate(fact) == f"{expected[0].words[-1].surprisal:.2f} bits"
    names = browser.evaluate(ALTERNATIVE_NAMES)
    likely = [each.word for each in models["words"].lm.next_words(text, k=10)]
    assert [_plain(name) for name in names] == likely
    assert browser.problems == []


def _plain(name):
    return "</s>" if name.startswith("\u21b5") else name.removesuffix(" any unknown word")


def test_page_works_with_basic_auth(browser, models):
    with Running(models, keys=[b"sesame"]) as service:
        browser.open(f"{service.url}/#text=ba+bila", password="sesame")
        browser.wait_for(SETTLED)
        assert browser.problems == []


def fail_with(status, message, **headers):
    def answer(path, body):
        error = {"error": {"message": message}}
        return (status, headers, error) if path == "/score" else None

    return answer


def test_page_asks_for_the_api_key(page):
    page.server.key = "sesame"
    page.show(waits=False)
    page.wait_for("byId('key') !== null")
    assert "requires an API key" in page.shown("#notice") and page.focused() == "key"
    page.type("wrong")
    page.press("Enter")
    page.wait_for("byId('key-label').textContent.includes('rejected')")
    page.type("sesame")
    page.press("Enter")
    page.settle()
    assert page.shown("#notice") == "" and page.text == TEXT
    page.reload()
    page.settle()
    kept = "[sessionStorage.length, localStorage.length]"
    assert page.evaluate(kept) == [1, 0]
    assert "sesame" not in page.evaluate("location.href")


def test_retries_a_busy_server(page):
    page.server.fail = fail_with(429, "too many requests wait", **{"Retry-After": "1"})
    page.show(waits=False)
    page.wait_for("!byId('notice').hidden")
    assert "cannot answer now: too many requests wait" in page.shown("#notice")
    assert page.text == TEXT
    page.server.fail = lambda path, body: None
    page.settle()
    assert page.shown("#notice") == "" and page.words[0] == "The"


def test_shows_errors_below_the_text(page):
    page.show()
    page.server.fail = fail_with(400, "text: 9 words, and <b>5</b> at most")
    page.evaluate("field.focus(), field.setSelectionRange(0, 0)")
    page.type("Today ")
    page.wait_for("!byId('notice').hidden")
    assert page.shown("#notice") == "text: 9 words, and <b>5</b> at most"
    assert page.text == f"Today {TEXT}"
    assert page.words[0] == "snow"  # unchanged words keep their color
    page.server.fail = lambda path, body: None
    page.type("x")
    page.settle()
    assert page.shown("#notice") == "" and page.words[1] == "xThe"


def test_unreachable_server(page):
    page.show()
    network = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.call("Network.emulateNetworkConditions", offline=True, **network)
    page.evaluate("field.focus(), field.setSelectionRange(0, 0)")
    page.type("Now ")
    page.wait_for("!byId('notice').hidden")
    assert "cannot be reached" in page.shown("#notice") and page.text == f"Now {TEXT}"
    page.call("Network.emulateNetworkConditions", offline=False, **network)
    page.click("#notice button")
    page.settle()
    assert page.words[0] == "Now"


def test_failed_alternatives_keep_the_rest(page):
    def only_scores(path, body):
        return fail_with(500, "the service failed")(path, body) if "top" in body else None

    page.server.fail = only_scores
    page.show()
    assert "the service failed" in page.shown("#panel-alternatives")
    assert "bits" in page.shown("#panel-facts")
    page.server.fail = lambda path, body: None
    page.click("#panel-alternatives button")
    page.wait_for("document.querySelector('.alternatives') !== null")
