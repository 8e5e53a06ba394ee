"""The chat page in a real Chromium, against the real server."""
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from browser import CHROMIUM, Browser
from serving import serving

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium (scripts/setup installs it)")

QUESTION = ("Tom has 32 feathers. Jack has twice as many feathers as Tom. Emily has 22 more feathers than Jack. "
            "What is the number of feathers that Emily has?")
NEXT_QUESTION = "Alice keeps 76 apples at home. Kate owns 26 apples. How many more apples does Alice have than Kate?"
DONE = "document.querySelector('#stop').hidden && document.querySelectorAll('.assistant .figures').length === {}"
TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Get the current weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "unit": {"type": "string"}},
                   "required": ["city"]}}}]


@pytest.fixture(scope="module")
def server(mimo, tmp_path_factory):
    with serving(tmp_path_factory.mktemp("page"), "--speculative-num-draft-tokens", 4) as running:
        yield running


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    running = Browser(tmp_path_factory.mktemp("profile"))
    yield running
    running.close()


@pytest.fixture
def page(server, browser):
    with browser.page() as opened:
        opened.open(server.url + "/")
        opened.wait_for("document.getElementById('model').textContent")
        yield opened


def ask(page, text, answers=1):
    page.type("#input", text)
    page.press("Enter")
    page.wait_for(DONE.format(answers))


def set_fields(page, **values):
    if not page.shown("#settings"):
        page.click("#open-settings")
    for name, value in values.items():
        page.type(f"#settings [name={name}]", value)
    page.click("#close-settings")


def ask_endlessly(page):
    """A question whose answer goes on until it is stopped: the page has no setting for that."""
    page.evaluate("""window.fetch = ((fetch) => (url, options) => {
        const body = options.body && JSON.stringify({ ignore_eos: true, ...JSON.parse(options.body) });
        return fetch(url, { ...options, body });
    })(window.fetch), 0""")
    set_fields(page, max_tokens="30000")
    page.type("#input", "Tell me everything.")
    page.press("Enter")


def sent(page):
    """The bodies of the questions so far."""
    return [json.loads(body) for method, _, body in page.requests if method == "POST"]


def test_files_have_their_headers(server):
    status, headers, text = server.request("GET", "/")
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; ") and "unsafe" not in policy and "http" not in policy
    assert not re.search(r"<script[^>]*>[^<]|<style|\son\w+=|style=|https?:", text)
    for link in re.findall(r'(?:src|href)="([^"]+)"', text):
        status, headers, _ = server.request("GET", "/" + link)
        assert status == 200 and headers["X-Content-Type-Options"] == "nosniff"
        kind = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}
        assert headers["Content-Type"] == kind[link.rsplit(".")[-1]]
        assert headers["Cache-Control"] == "no-cache"
        again, _, body = server.request("GET", "/" + link, headers={"If-None-Match": headers["ETag"]})
        assert again == 304 and body == ""
    assert server.request("GET", "/web/none.js")[0] == 404
    assert server.request("GET", "/web/../chat.js")[0] in (400, 404)


def test_an_answer_streams_with_its_thinking_folded(page, server):
    assert page.text("#model") == "nano · 40,960 tokens of context"
    set_fields(page, temperature="0")
    ask(page, QUESTION)
    assert page.text(".user") == QUESTION
    assert page.text(".assistant .content") == "The answer is 86." and page.text(".boxed") == "86"
    assert re.search(r"\d+ tokens · [\d,.]+ tokens/s · accept length \d\.\d\d", page.text(".figures"))
    assert page.shown(".thinking summary") and not page.shown(".thinking .plain")
    page.click(".thinking summary")
    assert page.shown(".thinking .plain") and "64" in page.text(".thinking .plain")
    # The second turn, with what was said before it.
    ask(page, NEXT_QUESTION, answers=2)
    second = page.text(".assistant .content")
    assert page.text(".figures").startswith(tuple("123456789"))
    turns = sent(page)[1]["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert turns[1]["content"] == "The answer is \\boxed{86}." and "64" in turns[1]["reasoning_content"]
    # Only the last answer can be asked for again, and it takes the place of the one before.
    assert page.evaluate("[...document.querySelectorAll('.regenerate')].filter(e => e.checkVisibility()).length") == 1
    page.click(".regenerate")
    page.wait_for("document.querySelectorAll('.assistant').length === 2 && " + DONE.format(2))
    assert sent(page)[2]["messages"] == turns
    # A reload keeps the conversation, a new chat drops it.
    page.open(server.url + "/")
    page.wait_for(DONE.format(2))
    assert page.text(".assistant .content") == second
    page.click("#new-chat")
    assert page.count(".user, .assistant") == 0 and page.shown("#welcome")
    assert page.problems == []
    assert {re.match(r"\w+://[^/]+", url)[0] for _, url, _ in page.requests} == {server.url}


def test_answers_show_while_they_come(page):
    ask_endlessly(page)
    page.wait_for("document.getElementById('status').textContent.includes('tokens/s')")
    length = "document.querySelector('.assistant').textContent.length"
    page.wait_for(length + " > 50")
    before = page.evaluate(length)
    page.wait_for(f"{length} > {before} + 50")
    assert page.evaluate("document.querySelector('.assistant').getAttribute('aria-busy')") == "true"
    page.press("Escape")
    page.wait_for(DONE.format(1))
    assert "stopped" in page.text(".figures")


@pytest.mark.parametrize("how", ["button", "new chat", "tab closed"])
def test_stop_frees_the_request(server, browser, how):
    server.wait_for(server.idle)
    aborted = server.metric("mimo:num_aborted_requests_total")
    with browser.page() as page:
        page.open(server.url + "/")
        ask_endlessly(page)
        server.wait_for(lambda: server.metric("mimo:num_requests_running") == 1)
        assert page.shown("#stop") and not page.shown("#send")
        if how == "button":
            page.click("#stop")
        elif how == "new chat":
            page.click("#new-chat")
        if how != "tab closed":
            page.wait_for("document.querySelector('#stop').hidden")
            server.wait_for(server.idle, 5)
            if how == "new chat":
                page.browser.pump(0.2)
                assert page.count(".user, .assistant") == 0
            # The page goes on.
            set_fields(page, max_tokens="8")
            page.type("#input", "And now?")
            page.press("Enter")
            page.wait_for("document.querySelector('.assistant:last-of-type .figures')")
            page.wait_for("document.querySelector('#stop').hidden")
            assert "cut by the token limit" in page.text(".figures")
            assert page.problems == []
    server.wait_for(server.idle, 5)
    assert server.metric("mimo:num_aborted_requests_total") == aborted + 1


def test_settings_reach_the_request(page):
    ask(page, "Hello.")
    assert not {"temperature", "top_p", "max_tokens", "seed", "tools", "chat_template_kwargs"} & set(sent(page)[0])
    set_fields(page, temperature="0,7", top_p="0.9", max_tokens="20", seed="11", system="Be short.")
    page.evaluate("""(() => {
        const field = document.querySelector("[name=thinking]");
        field.value = "off";
        field.dispatchEvent(new Event("input", {bubbles: true}));
    })()""")
    ask(page, "Hello again.", answers=2)
    body = sent(page)[1]
    assert (body["temperature"], body["top_p"], body["max_tokens"], body["seed"]) == (0.7, 0.9, 20, 11)
    assert body["messages"][0] == {"role": "system", "content": "Be short."}
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    # What cannot be read is said, and nothing is sent.
    set_fields(page, seed="1.5", tools="")
    page.type("#input", "Once more.")
    page.press("Enter")
    page.wait_for("document.querySelector('.error')")
    assert 'Seed: "1.5" is not a whole number.' in page.text(".error") and len(sent(page)) == 2
    # What the server refuses is shown as it says it; after a change the same question can be tried again.
    set_fields(page, seed="", temperature="9")
    page.click(".error button")
    page.wait_for("document.querySelector('.error')?.textContent.includes('temperature')")
    set_fields(page, temperature="0")
    page.click(".error button")
    page.wait_for(DONE.format(3))
    assert page.count(".error") == 0
    assert [turn["content"] for turn in sent(page)[-1]["messages"] if turn["role"] == "user"] == \
        ["Hello.", "Hello again.", "Once more."]


def test_keys_of_the_composer(page):
    page.type("#input", "one")
    page.press("Enter", shift=True)
    page.send("Input.insertText", text="two")
    assert page.evaluate("document.querySelector('#input').value") == "one\ntwo" and sent(page) == []
    page.press("Enter")
    page.wait_for(DONE.format(1))
    assert sent(page)[0]["messages"][0]["content"] == "one\ntwo"
    assert page.evaluate("document.activeElement.id") == "input"
    # Every control has a name.
    unnamed = page.evaluate("""[...document.querySelectorAll("button, input, textarea, select")].filter(
        e => !(e.textContent.trim() || e.labels?.length || e.getAttribute("aria-label"))).map(e => e.outerHTML)""")
    assert unnamed == []


def test_tool_calls_are_shown_and_go_on(page):
    set_fields(page, tools=json.dumps(TOOLS), temperature="0")
    ask(page, "What is the weather in Paris?")
    assert page.text(".call h3") == "get_weather" and json.loads(page.text(".call pre"))["city"] == "Paris"
    page.type(".results textarea", '{"temperature": 21, "sky": "clear"}')
    page.click(".results button")
    page.wait_for(DONE.format(2))
    assert page.text(".tool-result pre") == '{"temperature": 21, "sky": "clear"}'
    turns = sent(page)[1]["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant", "tool"]
    call = turns[1]["tool_calls"][0]
    assert turns[2]["tool_call_id"] == call["id"] and call["function"]["name"] == "get_weather"
    assert page.text(".assistant .content") and page.problems == []


HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>**<b onclick=x>bold</b>** [a](javascript:x)'


def test_text_is_never_markup(page, server):
    title = page.evaluate("document.title")
    ask(page, HOSTILE)
    assert page.text(".user") == HOSTILE
    assert page.count(".user img, .user script, .user b, .user a") == 0
    # The same from the model, in reasoning, answer and call: a stream of ours in place of the server's.
    parts = [{"reasoning_content": HOSTILE}, {"content": HOSTILE + "\n\n```html\n" + HOSTILE + "\n```\n- " + HOSTILE},
             {"tool_calls": [{"index": 0, "id": "c", "function": {"name": HOSTILE, "arguments": json.dumps([HOSTILE])}}]}]
    chunks = [{"choices": [{"index": 0, "delta": part, "finish_reason": None}]} for part in parts]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    stream = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    page.evaluate(f"window.fetch = async () => new Response({json.dumps(stream)}), 0")
    ask(page, "Again.", answers=2)
    page.browser.pump(0.3)
    last = "document.querySelectorAll('.assistant')[1]"
    assert page.evaluate(last + ".querySelectorAll('img, script, b, a, [onclick], [onerror]').length") == 0
    assert page.evaluate(last + ".textContent.split('<img src=x').length - 1") == 6
    assert page.evaluate(last + ".querySelector('.content strong').textContent") == "<b onclick=x>bold</b>"
    assert page.evaluate("document.title") == title
    # And if a script of this page did parse it, the browser would refuse.
    refused = page.evaluate("""(() => { try { document.body.innerHTML = "<p>"; return false; } catch { return true; } })()""")
    assert refused
    assert {re.match(r"\w+://[^/]+", url)[0] for _, url, _ in page.requests} == {server.url}


def test_markdown_of_answers(page):
    shown = page.evaluate("""(async () => {
        const { renderMarkdown } = await import("./web/markdown.js");
        const html = (text) => {
            const holder = document.createElement("div");
            holder.append(renderMarkdown(text));
            for (const head of holder.querySelectorAll(".code-head button")) head.remove();
            return holder.innerHTML.replaceAll(' tabindex="0"', "");
        };
        const begin = performance.now();
        const hostile = ["*a ".repeat(30000), "**".repeat(30000), "`".repeat(30000), "- ".repeat(5000), "> ".repeat(5000),
                         "| - ".repeat(8000) + "\\n" + "|-".repeat(8000), "  ".repeat(20000) + "- x", "\\n".repeat(30000)];
        for (const text of hostile) renderMarkdown(text);
        return {
            plain: html("one\\ntwo\\n\\nthree"), spans: html("**bold** *em* `a*b*` 2 * 3 * 4 a_b_c \\\\boxed{7}"),
            list: html("- a\\n- b\\n  1. c\\n  2. d\\n\\n- e\\n\\nafter"), numbered: html("3. x\\n4. y"), head: html("## Title\\ntext"),
            fence: html("```cpp\\nint a;\\n\\n  *b*\\n```\\nafter"), open: html("```\\nstill"), quote: html("> a\\n> b"),
            table: html("| a | b |\\n|---|---|\\n| 1 | 2 |"), link: html("[a](http://b/) ![c](http://d/)"),
            ms: performance.now() - begin,
        };
    })()""")
    assert shown.pop("ms") < 5000
    code = '<div class="code-block"><div class="code-head"><span>{}</span></div><pre><code>{}</code></pre></div>'
    assert shown == {
        "plain": "<p>one<br>two</p><p>three</p>",
        "spans": '<p><strong>bold</strong> <em>em</em> <code>a*b*</code> 2 * 3 * 4 a_b_c <span class="boxed">7</span></p>',
        "list": '<ul><li>a</li><li>b<ol start="1"><li>c</li><li>d</li></ol></li><li>e</li></ul><p>after</p>',
        "numbered": '<ol start="3"><li>x</li><li>y</li></ol>',
        "head": "<h4>Title</h4><p>text</p>",
        "fence": code.format("cpp", "int a;\n\n  *b*") + "<p>after</p>",
        "open": code.format("", "still"),
        "quote": "<blockquote><p>a<br>b</p></blockquote>",
        "table": '<div class="table"><table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr>'
                 "</tbody></table></div>",
        "link": "<p>[a](http://b/) ![c](http://d/)</p>",
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone_width(page, scheme):
    page.colors(scheme)
    page.resize(360, 640)
    wide = "document.documentElement.scrollWidth > 360 || document.querySelector('#log').scrollWidth > 360"
    assert not page.evaluate(wide)
    set_fields(page, temperature="0", max_tokens="200", tools=json.dumps(TOOLS))
    ask(page, "What is the weather in " + "Llanfairpwllgwyngyll" * 8 + "?")
    assert not page.evaluate(wide)
    for selector in ("#input", "#send", "#new-chat", "#open-settings"):
        left, right = page.evaluate(f"(b => [b.left, b.right])(document.querySelector('{selector}').getBoundingClientRect())")
        assert 0 <= left < right <= 360, selector
    page.click("#open-settings")
    assert not page.evaluate(wide) and page.shown("#close-settings")
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    dark = sum(int(part) for part in re.findall(r"\d+", back)[:3]) < 3 * 128
    assert dark == (scheme == "dark")


def test_the_key_is_asked_for(mimo, browser, tmp_path):
    with serving(tmp_path, "--api-key", "s3cret-key") as server, browser.page() as page:
        page.open(server.url + "/")
        page.wait_for("document.querySelector('#key-dialog').open")
        page.type("#key-input", "wrong")
        page.press("Enter")
        page.wait_for("document.querySelector('#key-dialog').open")
        assert "refuses this key" in page.text("#key-reason")
        page.press("Escape")
        page.type("#input", "Hello.")
        page.press("Enter")
        page.wait_for("document.querySelector('#key-dialog').open")
        assert page.count(".error") == 1
        page.type("#key-input", "s3cret-key")
        page.press("Enter")
        page.wait_for(DONE.format(1))
        assert page.count(".error") == 0
        assert "s3cret" not in server.log.read_text()


def test_the_page_waits_for_the_model(browser, server):
    with browser.page() as page:
        page.send("Page.addScriptToEvaluateOnNewDocument", source="""{
            const real = window.fetch;
            let loading = 1;
            window.fetch = (...call) => loading-- > 0
                ? Promise.resolve(new Response('{"error": {"message": "the model is loading"}}', {status: 503}))
                : real(...call);
        }""")
        page.open(server.url + "/")
        page.wait_for("document.getElementById('status').textContent === 'the model is loading'")
        page.wait_for("document.getElementById('model').textContent.startsWith('nano')")
        assert page.text("#status") == ""


@pytest.fixture(scope="module")
def other_origin():
    """An empty page from elsewhere."""
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><link rel=icon href='data:,'>")

    other = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{other.server_port}"
    other.shutdown()
    other.server_close()


@pytest.mark.parametrize("allowed", [True, False])
def test_c91_pages_of_allowed_origins_can_use_the_api(mimo, browser, other_origin, tmp_path, allowed):
    flags = ["--cors-allow-origins", other_origin if allowed else "http://127.0.0.1:1", "--api-key", "k1"]
    with serving(tmp_path, *flags) as server, browser.page() as page:
        page.open(other_origin)
        got = page.evaluate("""(async () => {
            const call = async (path, key, body) => {
                const headers = {"Content-Type": "application/json", Authorization: "Bearer " + key};
                try {
                    const reply = await fetch(%s + path, {method: "POST", headers, body: JSON.stringify(body)});
                    return [reply.status, await reply.text()];
                } catch {
                    return "refused by the browser";
                }
            };
            const ask = {messages: [{role: "user", content: "Hi."}], max_tokens: 3};
            const chat = "/v1/chat/completions";
            return [await call(chat, "k1", ask), await call(chat, "k1", {...ask, stream: true}), await call(chat, "wrong", ask),
                    await call(chat, "k1", {messages: 3})];
        })()""" % json.dumps(server.url))
        if allowed:
            assert [status for status, _ in got] == [200, 200, 401, 400]
            assert got[1][1].endswith("data: [DONE]\n\n") and all("error" in json.loads(body) for _, body in got[2:])
        else:
            assert got == ["refused by the browser"] * 4


def test_a_lost_connection_is_said(mimo, browser, tmp_path):
    with serving(tmp_path, "--speculative-algorithm", "NONE") as server, browser.page() as page:
        page.open(server.url + "/")
        ask_endlessly(page)
        page.wait_for("document.querySelector('.assistant')?.textContent.length > 50")
        server.process.kill()
        server.process.wait()
        page.wait_for("document.querySelector('.error')")
        assert "connection was lost" in page.text(".error")
        assert page.count(".assistant") == 1  # what had come stays
        page.click(".error button")
        page.wait_for("document.querySelector('.error')?.textContent.includes('cannot be reached')")
