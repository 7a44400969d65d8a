#!/usr/bin/env python3
"""How large a page `millpond report` makes of many events, how long it takes to make and to open in
chromium, and what memory that takes. The trace is random (seed 5): blocks of 512 bytes to 1 MiB at
40,000 places, seven streams; the least that packing can gain from.

    bench/report_page.py [EVENTS]      default 10,000,000; prints JSON

Takes Selenium (build/tools, scripts/install-dependencies test).
"""

import glob
import gzip
import json
import os
import pathlib
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time

from support.block_history import block_history

ROOT = pathlib.Path(__file__).resolve().parent.parent
try:
    from selenium import webdriver
except ImportError:
    tools = ROOT / "build/tools/bin/python"
    if tools.exists() and pathlib.Path(sys.prefix).resolve() != tools.parent.parent.resolve():
        os.execv(tools, [str(tools), *sys.argv])
    sys.exit("Python has no selenium: scripts/install-dependencies test")


def write_trace(path, events):
    pick = random.Random(5)
    history, lines = block_history(pick, grows=0.5), ["action,time_us,addr,size,stream\n"]
    with gzip.open(path, "wt", compresslevel=1) as out:
        for at in range(events):
            place, allocated = history.next()
            action = "alloc" if allocated else "free_requested"
            lines.append(
                f"{action},{3 * at},{history.address(place)},{history.size(place)},{place % 7}\n"
            )
            if len(lines) >= 100_000:
                out.write("".join(lines))
                lines = []
        out.write("".join(lines))


def renderer_seconds(root):
    """Processor time of the browser's pages so far."""
    children, found = {}, []
    for name in glob.glob("/proc/[0-9]*/stat"):
        try:
            pid, rest = open(name).read().split(" ", 1)
            fields = rest.rsplit(")", 1)[1].split()
            children.setdefault(int(fields[1]), []).append(
                (int(pid), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
            )
        except OSError:
            pass
    left = [root]
    while left:
        for pid, seconds in children.get(left.pop(), []):
            left.append(pid)
            try:
                if "--type=renderer" in open(f"/proc/{pid}/cmdline").read():
                    found.append(seconds)
            except OSError:
                pass
    return sum(found)


def main():
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    with tempfile.TemporaryDirectory() as folder:
        trace, page = pathlib.Path(folder) / "trace.csv.gz", pathlib.Path(folder) / "report.html"
        write_trace(trace, events)
        began = time.time()
        subprocess.run(
            [ROOT / "build/millpond", "report", trace, "-o", page],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        made_s, used = time.time() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        for each in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(each)
        service = webdriver.ChromeService(shutil.which("chromedriver"))
        browser = webdriver.Chrome(options=options, service=service)
        before = renderer_seconds(service.process.pid)
        browser.get(page.as_uri())
        while not browser.execute_script("return !!window.millpond"):
            time.sleep(0.05)
        print(
            json.dumps(
                {
                    "what": "millpond report of a random trace, made and opened",
                    "events": events,
                    "events_one_by_one": browser.execute_script(
                        "return window.millpond.report.traces[0].events_shown"
                    ),
                    "page_bytes": page.stat().st_size,
                    "made_s": round(made_s, 2),
                    "made_processor_s": round(used.ru_utime + used.ru_stime, 2),
                    "made_peak_rss_bytes": used.ru_maxrss * 1024,
                    "ready_ms": round(browser.execute_script("return window.millpond.ready_ms")),
                    "ready_processor_s": round(renderer_seconds(service.process.pid) - before, 2),
                    "browser": browser.capabilities["browserVersion"],
                    "processors": os.cpu_count(),
                    "load_1min": round(os.getloadavg()[0], 1),
                },
                indent=1,
            )
        )
        browser.quit()


if __name__ == "__main__":
    main()
