"""The live page in headless Chromium, with a running stream."""

from __future__ import annotations

import importlib.util
import json
import shutil
import time
import urllib.request
from urllib.parse import urlsplit

import pytest
from tests.dedispersion.test_stream_commands import start_stream
from tests.dedispersion.test_stream_pipeline import data, rows_of

from skysieve.dedispersion.stream.command.emulate import emulate

__all__ = ["data"]

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
REASON = "; ".join(
    reason
    for missing, reason in (
        (CHROMIUM is None or DRIVER is None, "no Chromium and chromedriver (Debian: chromium, chromium-driver)"),
        (importlib.util.find_spec("selenium") is None, "selenium is not installed"),
        (importlib.util.find_spec("bokeh") is None, "the extra 'web' is not installed"),
    )
    if missing
)
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
         "--window-size=1400,1200")  # fmt: skip
FIND = """
const look = (root, query) => {
  const found = root.querySelector(query);
  if (found) return found;
  for (const one of root.querySelectorAll("*")) {
    const inner = one.shadowRoot && look(one.shadowRoot, query);
    if (inner) return inner;
  }
  return null;
};
const element = look(document, arguments[0]);
"""
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360f8cfc0f01f0005000201a5f645400000000049454e44ae426082"
)


@pytest.fixture
def browser(tmp_path):
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def text(browser, query):
    """Text of an element, also inside shadow roots; None if there is none."""
    return browser.execute_script(FIND + "return element && element.textContent;", query)


def wait(read, good, seconds=120.0):
    until = time.monotonic() + seconds
    while not good(value := read()) and time.monotonic() < until:
        time.sleep(0.1)
    assert good(value), value
    return value


def candidates(browser):
    return int(text(browser, "#candidates b") or 0)


@pytest.mark.slow
def test_an_operator_sees_a_pulse(data, tmp_path, browser, request):
    """Counts change without a reload; plane, table and picture show the candidates of the stream."""
    data.plan.save(tmp_path / "a.json")
    said = []
    process, port = start_stream(tmp_path, "--web", "0", "--metrics", "0", "--source", "<img src=x>Crab", said=said)
    request.addfinalizer(process.kill)
    page = next(line.split()[-1] for line in said if line.startswith("the live page is on "))
    metrics = next(line.split()[-1] for line in said if line.startswith("metrics are on "))
    assert "skysieve_stream_page_up 1\n" in urllib.request.urlopen(metrics).read().decode()
    browser.get(page)
    wait(lambda: text(browser, "#state"), lambda words: words == "live")
    assert candidates(browser) == 0
    assert text(browser, ".none") == "No pictures yet."
    emulate(data.fb, "127.0.0.1", port, rate=4.0, packet_bytes=512, loss=0.02, seed=3)
    wait(lambda: candidates(browser), lambda n: n > 0)
    assert wait(lambda: text(browser, "#lost b"), lambda lost: int(lost or 0) > 0)

    def shown():
        """The table on the disk, the points of the plane, the S/N in the first row of the page's table."""
        plane = browser.execute_script("""
            const plane = Bokeh.documents[0].get_model_by_name("plane");
            const {dm, when} = plane.renderers[0].data_source.data;
            return {dm: Array.from(dm), when: Array.from(when), range: [plane.x_range.start, plane.x_range.end]};
        """)
        first = browser.execute_script(FIND + "return element.rows[1].cells[1].textContent;", "table")
        return rows_of(tmp_path / "out"), plane, first

    def agree(found):
        rows, plane, first = found
        return (
            len(rows) >= 2 and plane["dm"] == [float(row["dm"]) for row in rows]
            and first == f"{float(rows[-1]['snr']):.1f}"
            and all(plane["range"][0] < when < plane["range"][1] for when in plane["when"])
        )  # fmt: skip

    rows, _, _ = wait(shown, agree)
    assert text(browser, "b") == "<img src=x>Crab"

    chosen = rows[0]
    pulses = tmp_path / "out" / "pulses"
    pulses.mkdir(exist_ok=True)
    name = f"{float(chosen['mjd_infinite']):.9f}_dm{float(chosen['dm']):.3f}_beam{chosen['beam']}.png"
    (pulses / name).write_bytes(PNG)
    browser.execute_script(
        'Bokeh.documents[0].get_model_by_name("plane").renderers[0].data_source.selected.indices = [0];'
    )
    image = FIND + "return element && [element.naturalWidth, element.getAttribute('src')];"
    assert wait(lambda: browser.execute_script(image, "img"), lambda found: found == [1, f"pulses/{name}"])
    title = FIND + "return element.getRootNode().querySelector('h2').textContent;"
    assert browser.execute_script(title, "img").startswith(f"Selected: S/N {float(chosen['snr']):.1f}, DM ")

    asked = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    places = [
        m["params"].get("request", m["params"])["url"]
        for m in asked
        if m["method"] in ("Network.requestWillBeSent", "Network.webSocketCreated")
    ]
    hosts = {urlsplit(place).netloc for place in places if not place.startswith(("chrome:", "data:"))}
    assert hosts == {urlsplit(page).netloc}
    assert [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    assert not browser.execute_script("return document.body.classList.contains('gone')")

    process.terminate()
    err = process.communicate(timeout=300)[1]
    assert process.returncode == 0, err
    assert wait(lambda: browser.execute_script("return document.body.classList.contains('gone')"), bool)
