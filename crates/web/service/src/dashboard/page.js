"use strict";
// Asks the service for the last minutes or the last hour, and shows them. What there is to show, and every number, comes from
// the service (layout.rs): this file writes numbers for people, draws curves, and remembers how the page was left.
(() => {
  const base = document.body.dataset.base;
  const TIMEOUT_MS = 4000, COLORS = 8, QUIET_LINES = 6;
  const byId = (id) => document.getElementById(id);

  // --- What is remembered ------------------------------------------------------------------------------------------------

  const recall = (key) => { try { return localStorage.getItem("batzen." + key); } catch { return null; } };
  const remember = (key, value) => { try { localStorage.setItem("batzen." + key, value); } catch { /* Private windows. */ } };

  // --- Numbers for people ------------------------------------------------------------------------------------------------

  const isNone = (x) => x === null || x === undefined || Number.isNaN(x);
  const digits = (x) => {
    const n = Math.abs(x);
    const places = n >= 100 || Number.isInteger(x) ? 0 : n >= 10 ? 1 : n >= 1 ? 2 : 3;
    return x.toLocaleString("en", { maximumFractionDigits: places });
  };
  const scaled = (x, names) => {
    let i = 0;
    while (Math.abs(x) >= 1024 && i < names.length - 1) { x /= 1024; i++; }
    return digits(x) + " " + names[i];
  };
  const BINARY_STEPS = Array.from({ length: 44 }, (_, i) => 2 ** i);
  const BYTES = ["B", "KiB", "MiB", "GiB", "TiB"];
  const time = (x) => {
    const n = Math.abs(x);
    if (n === 0) return "0 s";
    if (n >= 2 * 86400) return digits(x / 86400) + " days";
    if (n >= 2 * 3600) return digits(x / 3600) + " h";
    if (n >= 120) return digits(x / 60) + " min";
    if (n >= 1) return digits(x) + " s";
    return n >= 1e-3 ? digits(x * 1e3) + " ms" : digits(x * 1e6) + " µs";
  };
  // Whole units are enough for how long a service runs.
  const since = (x) => x >= 172800 ? Math.floor(x / 86400) + " days" : x >= 7200 ? Math.floor(x / 3600) + " hours"
    : x >= 120 ? Math.floor(x / 60) + " minutes" : Math.floor(x) + " seconds";
  const units = {
    rate: (x) => digits(x) + "/s",
    count: digits,
    bytes: (x) => scaled(x, BYTES),
    byteRate: (x) => scaled(x, BYTES) + "/s",
    money: (x) => x.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: Math.abs(x) < 1e6 ? 8 : 2 }),
    percent: (x) => digits(x * 100) + " %",
    yes: (x) => x ? "yes" : "no",
    time,
  };
  const written = (unit, x) => isNone(x) ? "–" : units[unit](x).replace(/^-/, "−");
  const clock = (seconds, parts) => new Date(seconds * 1000).toLocaleTimeString("en-GB", parts);
  const MINUTES = { hour: "2-digit", minute: "2-digit" }, SECONDS = { ...MINUTES, second: "2-digit" };

  // --- Nodes -------------------------------------------------------------------------------------------------------------

  function element(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }
  const setText = (node, text) => { if (node.textContent !== text) node.textContent = text; };
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

  // One number.
  function makeTile(first) {
    const number = element("span", {}), unit = element("small", {}), alarm = element("span", { class: "unseen" });
    const node = element("div", { class: "card tile", id: "tile-" + first.id },
      element("dt", {}, first.label), element("dd", {}, alarm, number, " ", unit));
    return { node, update(tile, about) {
      setText(number, written(tile.unit, tile.value));
      setText(unit, tile.unit === "money" && !isNone(tile.value) ? about.currency : "");
      setText(alarm, tile.bad ? "needs attention: " : "");
      node.dataset.value = isNone(tile.value) ? "" : tile.value;
      node.classList.toggle("bad", tile.bad);
    } };
  }

  // Lines over time, with a legend that shows the values under the pointer, or the latest.
  const charts = new Set();
  function makeChart(first) {
    const when = element("span", {}), body = element("tbody"), nothing = element("p", { class: "nothing" }, "nothing yet");
    const plot = element("div", { class: "plot", "aria-hidden": "true" }, nothing);
    const table = element("table", {}, element("caption", { class: "unseen" }, first.title), body);
    const node = element("section", { class: "card", id: "chart-" + first.id, "aria-labelledby": "title-" + first.id },
      element("div", { class: "head" }, element("h3", { id: "title-" + first.id }, first.title), when),
      element("p", { class: "caption" }, first.caption), plot, table);
    let chart = null, names = "", rows = [], data = [[]], latest = first, window_s = [0, 1];

    function legend(index) {
      const at = isNone(index) ? data[0].length - 1 : index;
      setText(when, isNone(index) ? "now" : clock(data[0][at], SECONDS));
      latest.lines.forEach((line, i) => setText(rows[i].cell, written(latest.unit, line.points[at])));
    }
    function build() {
      if (chart) chart.destroy();
      const soft = color("soft"), grid = { stroke: color("grid"), width: 1 }, font = "12px system-ui, sans-serif";
      chart = new uPlot({
        width: Math.max(plot.clientWidth, 100), height: Math.max(plot.clientHeight, 100), padding: [8, 10, 0, 0],
        legend: { show: false },
        cursor: { sync: { key: "time" }, y: false, drag: { x: false, y: false }, points: { size: 7 } },
        scales: { x: { time: true, range: () => window_s }, y: { range: (u, low, high) => [Math.min(0, low || 0), high > 0 ? high * 1.08 : 1] } },
        axes: [
          { stroke: soft, font, grid, ticks: grid, size: 26, gap: 4, space: 44, incrs: [60, 120, 300, 600, 900, 1800],
            values: (u, splits) => splits.map((t) => clock(t, MINUTES)) },
          { stroke: soft, font, grid, ticks: { show: false }, gap: 4, space: 30,
            ...(latest.unit.startsWith("byte") ? { incrs: BINARY_STEPS } : {}),
            size: (u, texts) => 14 + 7 * Math.max(2, ...(texts || []).map((text) => text.length)),
            values: (u, splits) => splits.map((y) => latest.unit === "money" ? digits(y) : units[latest.unit](y)) },
        ],
        series: [{}, ...latest.lines.map((line, i) => ({
          label: line.name, stroke: color("s" + i % COLORS), width: 1.6, dash: i < COLORS ? undefined : [5, 4],
          points: { show: data[0].length < 3 },
        }))],
        hooks: { setCursor: [(u) => legend(u.cursor.idx)] },
      }, data, plot);
      plot.querySelectorAll(".u-over, .uplot").forEach((part) => part.setAttribute("role", "presentation"));
    }
    function update(now, about) {
      latest = now;
      data = [about.times, ...now.lines.map((line) => line.points)];
      window_s = [about.at - about.range_s, about.at];
      const all = now.lines.flatMap((line) => line.points);
      const found = now.lines.map((line) => line.name).join("\n");
      if (found !== names || (chart && (data[0].length < 3 || chart.data[0].length < 3))) {
        names = found;
        rows = now.lines.map((line, i) => {
          const cell = element("td", {});
          const swatch = element("span", { class: "swatch c" + i % COLORS + (i < COLORS ? "" : " dashed"), "aria-hidden": "true" });
          return { cell, row: element("tr", {}, element("th", { scope: "row" }, swatch, line.name), cell) };
        });
        body.replaceChildren(...rows.map(({ row }) => row));
        if (chart) { chart.destroy(); chart = null; }
      }
      // What never happened needs no row where there are many.
      now.lines.forEach((line, i) => { rows[i].row.hidden = rows.length > QUIET_LINES && line.points.every((x) => !x); });
      nothing.hidden = rows.length > QUIET_LINES ? all.some((x) => x) : all.some((x) => !isNone(x));
      node.dataset.max = Math.max(0, ...all.filter((x) => !isNone(x)));
      node.dataset.points = about.times.length;
      if (plot.clientWidth > 0) {
        if (chart) chart.setData(data); else build();
      }
      legend(chart ? chart.cursor.idx : null);
    }
    const fit = () => {
      if (plot.clientWidth > 0 && latest.lines.length && data[0].length) {
        if (!chart) build();
        else if (chart.width !== plot.clientWidth) chart.setSize({ width: plot.clientWidth, height: plot.clientHeight });
      }
    };
    new ResizeObserver(fit).observe(plot);
    // A finger shows values as a pointer does.
    plot.addEventListener("pointermove", (event) => {
      if (event.pointerType !== "mouse" && chart) chart.setCursor({ left: event.clientX - chart.over.getBoundingClientRect().left, top: 10 });
    });
    charts.add({ redraw: () => { if (chart) build(); } });
    return { node, update };
  }

  // A table with a title.
  function makeTable(first) {
    const head = element("tr", {}, ...first.columns.map((column) => element("th", { scope: "col" }, column.title)));
    const body = element("tbody"), nothing = element("p", { class: "nothing" }, first.empty);
    const table = element("table", {}, element("caption", { class: "unseen" }, first.title), element("thead", {}, head), body);
    const scroll = element("div", { class: "scroll", role: "group", tabindex: "0", "aria-labelledby": "title-" + first.id }, table);
    const node = element("section", { class: "card wide", id: "table-" + first.id, "aria-labelledby": "title-" + first.id },
      element("h3", { id: "title-" + first.id }, first.title), scroll, nothing);
    return { node, update(now) {
      body.replaceChildren(...now.rows.map((row) => element("tr", {}, ...row.map((cell, i) => {
        const unit = now.columns[i].unit;
        const text = unit ? written(unit, cell) : cell;
        return i === 0 ? element("th", { scope: "row" }, text) : element("td", {}, text);
      }))));
      nothing.hidden = now.rows.length > 0;
      scroll.hidden = now.rows.length === 0;
    } };
  }

  // --- Sections ----------------------------------------------------------------------------------------------------------

  const sections = new Map();
  function makeSection(first) {
    const id = "section-" + first.id, note = element("small", {});
    const tiles = element("dl", { class: "tiles" }), cards = element("div", { class: "cards" });
    const node = element("details", { id, class: "section" },
      element("summary", {}, element("h2", { id: id + "-title" }, first.title), note), tiles, cards);
    node.open = recall("folded." + first.id) !== "yes";
    node.addEventListener("toggle", () => remember("folded." + first.id, node.open ? "no" : "yes"));
    const link = element("a", { href: "#" + id }, first.title);
    link.addEventListener("click", () => { node.open = true; });
    const parts = new Map();
    const part = (key, make, value, place) => {
      if (!parts.has(key)) {
        parts.set(key, make(value));
        place.append(parts.get(key).node);
      }
      return parts.get(key);
    };
    return { node, item: element("li", {}, link), update(now, about) {
      const bad = now.tiles.filter((tile) => tile.bad).length;
      setText(note, bad ? bad + (bad === 1 ? " number needs" : " numbers need") + " attention" : "");
      for (const tile of now.tiles) part("tile " + tile.id, makeTile, tile, tiles).update(tile, about);
      for (const chart of now.charts) part("chart " + chart.id, makeChart, chart, cards).update(chart, about);
      if (now.table) part("table", makeTable, now.table, node).update(now.table, about);
      tiles.hidden = !now.tiles.length;
      cards.hidden = !now.charts.length;
    } };
  }
  function show(about) {
    let added = false;
    for (const section of about.sections) {
      if (!sections.has(section.id)) {
        sections.set(section.id, makeSection(section));
        added = true;
      }
    }
    if (added) {
      const ordered = about.sections.map((section) => sections.get(section.id));
      byId("sections").replaceChildren(...ordered.map(({ node }) => node));
      byId("jump").firstElementChild.replaceChildren(...ordered.map(({ item }) => item));
      byId("jump").hidden = ordered.length < 2;
    }
    for (const section of about.sections) sections.get(section.id).update(section, about);
  }

  // --- The round ---------------------------------------------------------------------------------------------------------

  let range = recall("range") || "300", answered = null, timer = 0, rounds = 0;
  function alive(about) {
    setText(byId("service"), about.service || "dashboard");
    document.title = "Batzen " + (about.service || "dashboard");
    setText(byId("version"), about.version ? "Version " + about.version + "." : "");
    setText(byId("interval"), String(about.interval_s));
    byId("state").className = "live";
    setText(byId("state"), "Live");
    setText(byId("uptime"), about.started ? "· up " + since(Math.max(0, about.at - about.started)) : "");
    byId("down").hidden = true;
    byId("sections").classList.remove("stale");
  }
  function lost(error) {
    byId("state").className = "lost";
    setText(byId("state"), "No answer");
    setText(byId("uptime"), "");
    const from = answered ? "since " + answered.toLocaleTimeString("en-GB") : "so far";
    const why = error instanceof TypeError ? "the connection is refused or cut"
      : error.name === "TimeoutError" ? "it takes too long" : error.message;
    setText(byId("down"), "The service does not answer (" + why + "), " + from
      + (sections.size ? ". The figures below are old." : "."));
    byId("down").hidden = false;
    byId("sections").classList.add("stale");
  }
  async function round() {
    clearTimeout(timer);
    const mine = ++rounds;
    let pause = 3000;
    if (!document.hidden) {
      try {
        const response = await fetch(base + "history?range=" + range, { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
        if (!response.ok) throw new Error("it answers with status " + response.status);
        const about = await response.json();
        if (mine !== rounds) return;
        answered = new Date();
        if (about.service) {
          alive(about);
          show(about);
          pause = about.interval_s * 1000;
        } else {
          pause = 300;
        }
      } catch (error) {
        if (mine !== rounds) return;
        lost(error);
      }
    }
    timer = setTimeout(round, pause);
  }
  for (const input of document.querySelectorAll("#ranges input")) {
    input.checked = input.value === range;
    input.addEventListener("change", () => {
      range = input.value;
      remember("range", range);
      round();
    });
  }
  if (!document.querySelector("#ranges input:checked")) {
    range = "300";
    document.querySelector("#ranges input").checked = true;
  }
  const redraw = () => charts.forEach((chart) => chart.redraw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) round(); });
  round();
})();
