"""Takes the pictures of the chat page in docs/images: .venv/bin/python tests/e2e/screenshots.py"""
import tempfile
from pathlib import Path

from browser import Browser
from conftest import ROOT
from serving import serving

QUESTION = ("Alice can make 9 toys in one hour. Arthur can make 10 toys in one hour. Both work for 5 hours. "
            "How many toys do they make in all?")


def main():
    images = ROOT / "docs" / "images"
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as server:
        # The first steps of a server are slower than the rest.
        server.post("/v1/chat/completions", messages=[{"role": "user", "content": QUESTION}])
        browser = Browser(Path(folder) / "profile")
        with browser.page(1000, 640) as page:
            page.open(server.url + "/")
            page.wait_for("document.getElementById('model').textContent")
            page.type("#input", QUESTION)
            page.press("Enter")
            page.wait_for("document.querySelector('.figures')?.textContent")
            page.click(".thinking summary")
            page.screenshot(images / "chat.png")
        with browser.page() as page:
            page.resize(360, 640, scale=2)
            page.colors("dark")
            page.open(server.url + "/")
            page.wait_for("document.getElementById('model').textContent")
            page.click("#examples button")
            page.wait_for("document.querySelector('.results')")
            page.screenshot(images / "chat-phone.png")
        browser.close()


if __name__ == "__main__":
    main()
