"""The page of `gangline simulate --html` in a real browser: no error, no request, plots that are drawn, the figures of --json."""

import json

import pytest

from browser import CHROMIUM, Browser

COLOURS = {"1b6ca8": [27, 108, 168], "c8553d": [200, 85, 61], "3a7d44": [58, 125, 68], "7b4b94": [123, 75, 148]}
WIDTHS = [1280, 420]
CANVASES = """[...document.querySelectorAll('canvas')].map(canvas => {
    const box = canvas.getBoundingClientRect(), area = Chart.getChart(canvas).chartArea, scale = canvas.width / box.width;
    const pixels = (x, y, w, h) => canvas.getContext('2d').getImageData(x * scale, y * scale, w * scale, h * scale).data;
    const whole = pixels(0, 0, box.width, box.height), inside = pixels(area.left + 2, area.top + 2, area.width - 4, area.height - 4);
    const colours = new Set();
    for (let i = 0; i < whole.length; i += 4) if (whole[i + 3] === 255) colours.add([...whole.slice(i, i + 3)].join());
    let coloured = 0;
    for (let i = 0; i < inside.length; i += 4) coloured += inside[i + 3] > 100 && Math.max(...inside.slice(i, i + 3)) - Math.min(...inside.slice(i, i + 3)) > 40;
    return {id: canvas.id, label: canvas.getAttribute('aria-label'), left: box.left, right: box.right, width: box.width, height: box.height, colours: [...colours], coloured,
            titles: Object.values(Chart.getChart(canvas).options.scales).map(axis => axis.title.text || '')};
})"""
TABLE = "[...document.getElementById('%s').rows].map(row => [...row.cells].map(cell => cell.innerText.replace(/\\s+/g, ' ').trim()))"
MEASURES = ["ett", "useful", "allocated", "mean_wait_s", "p95_wait_s", "worst_stretch_s", "stranded", "span_s"]


@pytest.fixture
def browser(home, tmp_path):
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    browser = Browser(tmp_path / "browser", home.environment)
    yield browser
    browser.close()


@pytest.fixture
def trace(tmp_path):
    """Forty jobs of 1 to 32 cards that want more than four nodes have."""
    rows = ["JobID|User|Account|Submit|ElapsedRaw|TimelimitRaw|AllocTRES|NNodes|State"]
    for i in range(40):
        cards = [1, 2, 8, 32, 4][i % 5]
        nodes = max(1, cards // 8)
        rows.append(f"{i + 1}|u{i % 3}|a|2026-01-01T{i // 4:02d}:{15 * (i % 4):02d}:00|{1800 + 977 * i % 7200}|240|cpu=8,gres/gpu={cards},node={nodes}|{nodes}|COMPLETED")
    path = tmp_path / "jobs.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def human(seconds):
    whole = int(seconds)
    if seconds < 60:
        return f"{seconds:.1f}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"


def shown(key, value, unit="%"):
    return human(value) if key.endswith("_s") else f"{100 * value:.2f} {unit}"


def signed(key, value):
    size = shown(key, abs(value), "points")
    return size if size == shown(key, 0, "points") else ("\N{MINUS SIGN}" if value < 0 else "+") + size


def page_of(home, tmp_path, *words):
    page = tmp_path / "page.html"
    return page, json.loads(home.cli("simulate", *words, "--html", page, "--json").stdout)


def check_page(browser, page, policies, canvases, width):
    browser.open(page, width)
    assert browser.troubles() == []
    assert browser.requests() == [page.as_uri()]
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page is wider than its window"
    drawn = browser.evaluate(CANVASES)
    assert [one["id"] for one in drawn] == canvases
    for one in drawn:
        assert one["width"] > 300 and one["height"] > 120 and one["left"] >= 0 and one["right"] <= width, one
        assert one["coloured"] > 50, f"nothing is plotted: {one}"
        assert {",".join(map(str, colour)) for colour in list(COLOURS.values())[:policies]} <= set(one["colours"]), one["id"]
        assert one["label"] and (any if one["id"] == "lost" else all)(one["titles"]), f"no words at an axis: {one}"


@pytest.mark.parametrize("width", WIDTHS)
def test_a_comparison_is_drawn_with_the_figures_of_the_json_report(home, browser, trace, tmp_path, width):
    page, report = page_of(home, tmp_path, "--trace", trace, "--nodes", 4, "--compare", "fifo,easy,gangline", "--seeds", 3, "--faults", 2000)
    check_page(browser, page, 3, ["used", "lost", "waits"], width)
    head, *rows = browser.evaluate(TABLE % "figures")
    assert head[1:] == ["fifo", "easy", "gangline"]
    for key, row in zip(MEASURES, rows):
        assert row[1:] == [f"{shown(key, one[key]['mean'])} {shown(key, one[key]['p5'])} to {shown(key, one[key]['p95'])}" for one in report["series"]]
    assert [row[1:] for row in rows[len(MEASURES):]] == [[f"{one['finished']} of {one['jobs']}" for one in report["series"]],
                                                         *([str(one[key]) for one in report["series"]] for key in ("faults", "swaps", "shrinks"))]
    head, *rows = browser.evaluate(TABLE % "differences")
    assert head[1:] == ["easy", "gangline"] and len(rows) == len(MEASURES)
    for key, row in zip(MEASURES, rows):
        assert row[1:] == [f"{signed(key, one[key]['mean'])} \N{PLUS-MINUS SIGN} {shown(key, one[key]['half_width_95'], 'points')}" for one in report["differences"]]
    assert any(one["mean_wait_s"]["mean"] != 0 for one in report["differences"])


@pytest.mark.parametrize("width", WIDTHS)
def test_one_gang_has_no_waits_and_no_differences(home, browser, tmp_path, width):
    page, report = page_of(home, tmp_path, "--train", 8, "--days", 5, "--faults", 40, "--snapshot-every", 600)
    check_page(browser, page, 1, ["used", "lost"], width)
    head, *rows = browser.evaluate(TABLE % "figures")
    assert head == ["", "gangline"]
    assert [row[1] for row in rows[:len(MEASURES)]] == [shown(key, report["series"][0][key]["mean"]) for key in MEASURES]
    assert browser.evaluate("document.getElementById('differences')") is None
    options = dict(browser.evaluate(TABLE % "options")[1:])
    assert {name: json.loads(value) for name, value in options.items()} == {name: value for name, value in report["options"].items() if name != "phases"}


def test_waits_stand_under_their_size_where_a_policy_has_none_of_some_size(home, browser, trace, tmp_path):
    page, report = page_of(home, tmp_path, "--trace", trace, "--nodes", 4, "--compare", "bestfit,fifo", "--days", 0.3)
    assert len({tuple(one["cards"] for one in series["wait_by_cards"]) for series in report["series"]}) == 2, "both policies started jobs of the same sizes"
    check_page(browser, page, 2, ["used", "lost", "waits"], 1280)
    chart = "Chart.getChart('waits').data"
    labels, plotted = browser.evaluate(chart + ".labels"), browser.evaluate(chart + ".datasets.map(set => set.data)")
    longest = max(one["mean_wait_s"] for series in report["series"] for one in series["wait_by_cards"])
    unit = next(unit for unit in (86400, 3600, 60, 1) if longest >= 2 * unit)
    for series, values in zip(report["series"], plotted):
        waits = {one["cards"]: one["mean_wait_s"] / unit for one in series["wait_by_cards"]}
        assert {label: value for label, value in zip(labels, values) if value is not None} == pytest.approx(waits)


def test_text_from_files_stays_text(home, browser, tmp_path):
    source = "</script><script>fetch('http://127.0.0.1:9/')</script><img src=http://127.0.0.1:9/x><!--<script>"
    phase = {"base_s": 1, "source": source}
    phases = tmp_path / "<b>phases &lt;.json"
    phases.write_text(json.dumps({name: phase for name in ("stop", "swap", "prepare", "launch", "join", "restore", "warm_up")} | {"detect_s": {"crash": 1}}))
    page, _ = page_of(home, tmp_path, "--train", 4, "--days", 5, "--faults", 40, "--phases", phases)
    check_page(browser, page, 1, ["used", "lost"], 1280)
    assert [row[3] for row in browser.evaluate(TABLE % "phases") if row[0] == "stop"] == [source]
    assert "<b>phases &lt;.json" in browser.evaluate("document.body.innerText")


def test_a_page_that_fails_is_noticed(home, browser, tmp_path):
    broken = tmp_path / "chart.js"
    broken.write_text("fetch('http://127.0.0.1:9/').catch(() => 0); nothing.such()")
    page, _ = page_of(home, tmp_path, "--train", 4, "--days", 1, "--chart-js", broken)
    browser.open(page, 1280)
    assert any("nothing is not defined" in str(trouble) for trouble in browser.troubles())
    assert "http://127.0.0.1:9/" in browser.requests()


def test_a_file_name_that_is_not_utf8_is_no_crash(home, tmp_path):
    phases = bytes(tmp_path) + b"/ph\xff.json"
    with open(phases, "w") as file:
        file.write(json.dumps({name: {"base_s": 1, "source": "x"} for name in ("stop", "swap", "prepare", "launch", "join", "restore", "warm_up")} | {"detect_s": {"crash": 1}}))
    _, report = page_of(home, tmp_path, "--train", 4, "--days", 1, "--phases", phases.decode(errors="surrogateescape"))
    assert any("ph\N{REPLACEMENT CHARACTER}.json" in note for note in report["notes"])
