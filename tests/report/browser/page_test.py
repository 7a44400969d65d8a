"""Opens the pages of `millpond report` in a real browser (chromium without a window, through
Selenium) and looks at them: no error, no request, marks that match the data, zoom, hover and keys,
both themes, two widths. Exit status 77, "skipped", where chromium or selenium is not there.

usage: page_test.py MILLPOND SOURCE_TREE OUTPUT_FOLDER      (the pictures stay in OUTPUT_FOLDER)
"""

import base64
import csv
import gzip
import json
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

try:
    import selenium  # noqa: F401
except ImportError:
    # scripts/install-dependencies test has put it beside the build.
    tools = Path(sys.argv[2] if len(sys.argv) > 2 else ".") / "build/tools/bin/python"
    if tools.exists() and Path(sys.prefix) != tools.parent.parent.resolve():
        os.execv(tools, [str(tools), *sys.argv])
try:
    from selenium import webdriver
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
except ImportError:
    print("skipped: Python has no selenium (PyPI); scripts/install-dependencies test installs it")
    sys.exit(77)
chromium = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
chromedriver = shutil.which("chromedriver")
if not chromium or not chromedriver:
    print("skipped: no chromium with its chromedriver (Debian: chromium, chromium-driver)")
    sys.exit(77)

millpond, source, folder = sys.argv[1], Path(sys.argv[2]).resolve(), Path(sys.argv[3]).resolve()
folder.mkdir(parents=True, exist_ok=True)
checks = 0


def check(holds, what):
    global checks
    checks += 1
    if not holds:
        raise AssertionError(what)


def make(name, *arguments):
    path = folder / name
    subprocess.run(
        [millpond, "report", *map(str, arguments), "-o", str(path)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return path


def browser(width, height):
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for each in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--disable-dev-shm-usage",
        "--force-device-scale-factor=1",
    ):
        options.add_argument(each)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
    # A headless window cannot be as narrow as a telephone; the page's size can.
    made.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
    )
    return made


def opened(page, path):
    page.get_log("browser"), page.get_log("performance")
    page.get(path.as_uri())
    for _ in range(600):
        if page.execute_script("return !!window.millpond"):
            return page.execute_script("return window.millpond.ready_ms")
        time.sleep(0.05)
    raise AssertionError(
        f"{path.name}: not ready in 30 s: {page.get_log('browser')} "
        f"{page.find_element(By.ID, 'about').text}"
    )


def value(page, expression):
    return page.execute_script(f"return {expression}")


def settle(page):
    page.execute_async_script(
        "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => "
        "setTimeout(done, 30)))"
    )


def no_faults(page, path):
    faults = [entry for entry in page.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    check(not faults, f"{path.name}: {faults}")
    for entry in page.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            url = message["params"]["request"]["url"]
            check(url.startswith(("file:", "data:", "blob:")), f"{path.name} asked for {url}")


def picture(page, name, whole=True):
    if whole:
        height = value(page, "document.documentElement.scrollHeight")
        width = value(page, "window.innerWidth")
        page.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {
                "width": width,
                "height": min(height, 8000),
                "deviceScaleFactor": 1,
                "mobile": width < 600,
            },
        )
        settle(page)
    page.save_screenshot(str(folder / name))


def key(page, text):
    ActionChains(page).send_keys(text).perform()
    settle(page)


def truth(path):
    """Live bytes from the CSV, counted here once more."""
    live, now, peak, allocations, frees = {}, 0, 0, 0, 0
    with gzip.open(path, "rt") as file:
        for row in csv.DictReader(file):
            if row["action"] == "alloc":
                live[row["addr"]] = int(row["size"])
                now += int(row["size"])
                allocations += 1
                peak = max(peak, now)
            elif row["action"] == "free_requested" and row["addr"] in live:
                now -= live.pop(row["addr"])
                frees += 1
    return peak, allocations, frees


def a_whole_trace():
    trace = source / "data/traces/multistream_serving.csv.gz"
    path = make("whole.html", trace, "--replay", "--gpu", "sim")
    peak, allocations, frees = truth(trace)
    page = browser(1280, 900)
    opened(page, path)

    def drawn(name):
        return value(page, f"window.millpond.drawn.{name}")

    check(drawn("memory")["operations"] == allocations + frees, "every operation is in the chart")
    check(drawn("memory")["most"] == peak, "the chart's highest column is the peak of the CSV")
    check(drawn("addresses")["blocks"] == allocations, "each block has its call_site")
    check(drawn("lifetimes")["blocks"] == allocations, "each block has its life")
    check(
        len(page.find_elements(By.CSS_SELECTOR, ".cell")) == drawn("lifetimes")["cells"] > 5,
        "a mark for each cell",
    )
    check(drawn("layout")["live_bytes"] == peak, "the layout at the peak holds the peak")
    check(
        drawn("latency")["rows"] >= 5 and len(page.find_elements(By.CSS_SELECTOR, ".bar")) > 10,
        "a histogram a strategy",
    )
    check(
        drawn("findings")["count"] == len(page.find_elements(By.CSS_SELECTOR, "details.finding")),
        "each finding is in the list",
    )
    check(
        value(page, "document.documentElement.scrollWidth") <= 1280,
        "nothing is wider than the page",
    )
    picture(page, "wide_light.png")

    # Keys: zoom, move, the peak, one event on, groups, the axis.
    whole = value(page, "window.millpond.page.view")
    key(page, "p"), key(page, "+"), key(page, "+")
    near = value(page, "window.millpond.page.view")
    check(near[1] - near[0] < (whole[1] - whole[0]) / 2, "+ zooms in")
    check(
        value(page, "window.millpond.page.cursor")
        == value(page, "window.millpond.report.traces[0].peak_event"),
        "p finds the peak",
    )
    key(page, Keys.ARROW_RIGHT)
    check(value(page, "window.millpond.page.view")[0] > near[0], "the arrow moves")
    before = value(page, "window.millpond.page.cursor")
    key(page, ".")
    check(value(page, "window.millpond.page.cursor") > before, "a dot steps to the next event")
    check(
        value(page, "window.millpond.page.group") == "stream",
        "with one kind of memory, colours tell streams",
    )
    key(page, "g")
    check(value(page, "window.millpond.page.group") == "site", "g changes what colours mean")
    key(page, "g"), key(page, "x")
    check(value(page, "window.millpond.page.axis") == "event", "x counts events")
    for _ in range(24):
        key(page, "+")
    check(
        0 < drawn("memory")["events"] == len(page.find_elements(By.CSS_SELECTOR, ".op")),
        "near enough, each event is a mark",
    )
    key(page, "0")
    view = value(page, "window.millpond.page.view")
    check(
        view[0] == 0 and view[1] == value(page, "window.millpond.report.traces[0].events") - 1,
        "0 shows everything",
    )

    # The mouse: a drag zooms, a move tells, a click looks at that moment.
    canvas = page.find_element(By.CSS_SELECTOR, "#memory-chart canvas")
    page.execute_script("document.getElementById('memory').scrollIntoView()")
    ActionChains(page).move_to_element_with_offset(canvas, -200, 0).click_and_hold().move_by_offset(
        150, 0
    ).release().perform()
    settle(page)
    zoomed = value(page, "window.millpond.page.view")
    check(zoomed[1] - zoomed[0] < (view[1] - view[0]) / 4, "a drag zooms")
    canvas = page.find_element(By.CSS_SELECTOR, "#memory-chart canvas")
    ActionChains(page).move_to_element_with_offset(canvas, 40, 20).perform()
    check("live" in page.find_element(By.ID, "tip").text, "the tip tells what is live")
    ActionChains(page).click().perform()
    settle(page)
    check(
        zoomed[0] <= value(page, "window.millpond.page.cursor") <= zoomed[1],
        "a click chooses the moment",
    )
    brush = page.find_element(By.CSS_SELECTOR, "#overview .overlay")
    ActionChains(page).move_to_element_with_offset(brush, -300, 0).click_and_hold().move_by_offset(
        60, 0
    ).release().perform()
    settle(page)
    brushed = value(page, "window.millpond.page.view")
    check(
        brushed[0] != zoomed[0] and brushed[1] - brushed[0] < (view[1] - view[0]) / 8,
        "the overview's brush chooses a part",
    )
    # A finding leads to its call_site.
    if drawn("findings")["count"]:
        key(page, "f")
        check(
            value(page, "document.querySelectorAll('details.finding[open]').length") == 1,
            "f opens a finding",
        )
    no_faults(page, path)
    page.quit()

    page = browser(1280, 900)
    opened(page, path)
    key(page, "t")
    check(value(page, "document.documentElement.dataset.theme") == "dark", "t changes the theme")
    key(page, "p")
    picture(page, "wide_dark.png")
    no_faults(page, path)
    page.quit()

    page = browser(390, 844)
    opened(page, path)
    check(
        value(page, "document.documentElement.scrollWidth") <= 390,
        "nothing is wider than a telephone",
    )
    picture(page, "narrow_light.png")
    no_faults(page, path)
    page.quit()


def stacks():
    """A snapshot with call stacks: the flame graph's widths are sums of its blocks."""
    path = make("stacks.html", source / "tests/data/snapshots/plain_protocol4.pickle")
    page = browser(1280, 900)
    opened(page, path)
    total = value(page, "window.millpond.report.traces[0].peak_bytes")
    check(
        value(page, "window.millpond.drawn.flame.total") == total,
        "the graph's whole width is the peak",
    )
    check(
        value(page, "window.millpond.drawn.flame.nodes")
        == len(page.find_elements(By.CSS_SELECTOR, ".flame rect"))
        > 3,
        "a mark a frame",
    )
    picture(page, "stacks.png")
    no_faults(page, path)
    page.quit()


# Machado, Oliveira and Fernandes 2009: what is seen without one sort of cone, of linear RGB.
SIGHTS = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def lab(colour, sight):
    """CIE L*a*b* of "#rrggbb" as a sight sees it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    r, g, b = (
        min(1, max(0, sum(weight * part for weight, part in zip(row, linear)))) for row in sight
    )

    def f(t):
        return t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116

    x, y, z = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883,
    )
    return 116 * f(y) - 16, 500 * (f(x) - f(y)), 200 * (f(y) - f(z))


def colours_and_print():
    """Every pair of the charts' colours stays apart without one sort of cone; paper gets the light
    theme and all findings."""
    path = make("print.html", source / "data/traces/multistream_serving.csv.gz")
    page = browser(1280, 900)
    opened(page, path)
    for theme, colours in value(page, "palette").items():
        for sight, matrix in SIGHTS.items():
            for n, one in enumerate(colours):
                for other in colours[:n]:
                    apart = math.dist(lab(one, matrix), lab(other, matrix))
                    check(
                        apart > 10, f"{theme}: {one} and {other} are {apart:.1f} apart with {sight}"
                    )
    key(page, "t")
    page.execute_script(
        "addEventListener('beforeprint', () => { window.printed = "
        "[document.documentElement.dataset.theme,"
        " document.querySelectorAll('details.finding:not([open])').length]; })"
    )
    paper = base64.b64decode(
        page.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"]
    )
    (folder / "print.pdf").write_bytes(paper)
    check(
        value(page, "window.printed") == ["light", 0],
        "paper is light, and every finding is open on it",
    )
    check(paper.startswith(b"%PDF") and len(paper) > 30_000, "there is something on paper")
    check(
        value(page, "document.documentElement.dataset.theme") == "dark",
        "afterwards the theme is as before",
    )
    no_faults(page, path)
    page.quit()


def two_traces():
    path = make(
        "two.html",
        source / "data/traces/resnet_serving.csv.gz",
        source / "data/traces/multistream_serving.csv.gz",
    )
    page = browser(1280, 900)
    opened(page, path)
    peaks = value(page, "window.millpond.report.traces.map(trace => trace.peak_bytes)")
    check(value(page, "window.millpond.drawn.twins") == peaks, "the twins show both peaks")
    check(
        value(page, "document.querySelectorAll('#changes tr').length") > 4, "measures are compared"
    )
    key(page, "2")
    check(value(page, "window.millpond.drawn.memory.most") == peaks[1], "2 shows the second trace")
    picture(page, "two.png")
    no_faults(page, path)
    page.quit()

    page = browser(390, 844)
    opened(page, path)
    check(
        value(page, "document.documentElement.scrollWidth") <= 390,
        "two traces are no wider than a telephone",
    )
    for table in ("0", "1"):
        of = f"document.querySelectorAll('#changes .scroll')[{table}]"
        check(
            value(page, f"{of}.scrollWidth - {of}.clientWidth") <= 0,
            "no column of what changed is cut off",
        )
        check(
            value(
                page,
                f"Math.max(...[...{of}.querySelectorAll('td')].map(cell => cell.offsetHeight))",
            )
            < 70,
            "names are not broken into letters",
        )
    picture(page, "two_narrow.png")
    no_faults(page, path)
    page.quit()


def no_holes():
    """What has no holes says so instead of showing an empty chart; findings tell where."""
    path = make("no_holes.html", source / "data/traces/faulty/device_wide_stall.mpt")
    page = browser(1280, 900)
    opened(page, path)
    check(
        value(page, "document.getElementById('fragmentation-chart').offsetHeight") == 0,
        "no empty chart",
    )
    check("none at any of" in page.find_element(By.ID, "fragmentation-note").text, "and it says so")
    check(
        "program.h:70" in page.find_element(By.CSS_SELECTOR, "details.finding summary").text,
        "a finding's row names its line",
    )
    no_faults(page, path)
    page.quit()


def a_long_trace():
    """More events than are shown one by one: sums elsewhere, and it says so."""
    path = make("long.html", source / "data/traces/gpt2_generate.csv.gz", "--events", "8000")
    page = browser(1280, 900)
    opened(page, path)
    trace = value(
        page,
        "(({peak_bytes, events, events_shown, windows, peak_event, left_out}) => ({peak_bytes, "
        "events, events_shown, windows, peak_event, left_out}))(window.millpond.report.traces[0])",
    )
    check(
        trace["events_shown"] <= 8000 < trace["events"] and "shown one by one" in trace["left_out"],
        "what was left out is said",
    )
    check(page.find_element(By.ID, "left").is_displayed(), "and seen")
    check(
        value(page, "window.millpond.drawn.memory.most") == trace["peak_bytes"]
        and not value(page, "window.millpond.drawn.memory.exact"),
        "sums keep the peak",
    )
    window = next(w for w in trace["windows"] if w["first"] <= trace["peak_event"] < w["end"])
    page.execute_script("look_at(arguments[0])", trace["peak_event"])
    settle(page)
    check(
        value(page, "window.millpond.drawn.memory.exact")
        and value(page, "window.millpond.drawn.memory.most") == trace["peak_bytes"],
        f"each event is known round the peak: {window}",
    )
    picture(page, "long.png")
    no_faults(page, path)
    page.quit()


if __name__ == "__main__":
    for one in (a_whole_trace, stacks, colours_and_print, two_traces, no_holes, a_long_trace):
        began = time.time()
        one()
        print(f"{one.__name__}: {time.time() - began:.1f} s")
    print(f"{checks} checks hold; pictures in {folder}")
