"use strict";
// Reads /metrics once a second and draws what it finds. All state is here: the server keeps none, and a panel whose metrics
// the service does not have is left out, so that one page fits every service.

// A chart begins half a minute wide and grows to three minutes.
const INTERVAL_MS = 1000, POINTS_MIN = 30, POINTS = 180, TIMEOUT_MS = 4000;
const base = location.pathname.replace(/\/*$/, "").replace(/[^/]*$/, "");
const url = base + "metrics";
const byId = (id) => document.getElementById(id);
byId("source").href = url;

// --- Prometheus' text format -------------------------------------------------------------------------------------------

// Family name → map of label text → value; labels as an object beside.
function parse(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    if (!line || line[0] === "#") continue;
    const match = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!match) continue;
    const labels = {};
    for (const part of (match[2] || "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[part[1]] = part[2];
    if (!samples.has(match[1])) samples.set(match[1], []);
    samples.get(match[1]).push({ labels, value: Number(match[3]) });
  }
  return samples;
}

const matches = (labels, wanted) => Object.entries(wanted || {}).every(([name, value]) => labels[name] === value);
// The sum of a metric's samples; null if there is none.
function sum(samples, name, wanted) {
  let total = null;
  for (const { labels, value } of samples.get(name) || []) if (matches(labels, wanted)) total = (total || 0) + value;
  return total;
}
// How fast a counter grows, a second; null without two readings. A counter that fell was started again.
function rate(now, before, name, wanted) {
  if (!before) return null;
  const b = sum(now.samples, name, wanted), a = sum(before.samples, name, wanted);
  if (b === null || a === null) return null;
  return Math.max(0, b < a ? b : b - a) / ((now.time - before.time) / 1000);
}
// The counts of a histogram's buckets between two readings, as [bound, count] ascending, not cumulative.
function buckets(now, before, name, wanted) {
  const read = (samples) => {
    const sums = new Map();
    for (const { labels, value } of samples.get(name + "_bucket") || []) {
      if (!matches(labels, wanted)) continue;
      const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
      sums.set(bound, (sums.get(bound) || 0) + value);
    }
    return sums;
  };
  const end = read(now.samples), start = before ? read(before.samples) : new Map();
  let last = 0;
  return [...end.keys()].sort((x, y) => x - y).map((bound) => {
    const total = end.get(bound) - (start.get(bound) || 0), count = Math.max(0, total - last);
    last = Math.max(last, total);
    return [bound, count];
  });
}
// A quantile of those, linear within the bucket (or, for numbers of things, its bound); null if nothing was recorded.
function quantile(list, q, whole) {
  const total = list.reduce((n, [, count]) => n + count, 0);
  if (!total) return null;
  let rest = q * total, low = 0;
  for (const [bound, count] of list) {
    if (count && rest <= count) return bound === Infinity ? low : whole ? bound : low + (bound - low) * rest / count;
    rest -= count;
    if (bound !== Infinity) low = bound;
  }
  return low;
}
const mean = (now, before, name, wanted) => {
  const n = rate(now, before, name + "_count", wanted), s = rate(now, before, name + "_sum", wanted);
  return n ? s / n : null;
};
const values = (samples, name, label) => [...new Set((samples.get(name) || []).map((s) => s.labels[label]))];

// --- Numbers for people ------------------------------------------------------------------------------------------------

const digits = (x) => {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  const n = Math.abs(x);
  const places = n >= 100 || Number.isInteger(x) ? 0 : n >= 10 ? 1 : n >= 1 ? 2 : 3;
  return x.toLocaleString("en", { maximumFractionDigits: places });
};
const scaled = (x, step, names) => {
  if (x === null || x === undefined) return "–";
  let i = 0;
  while (Math.abs(x) >= step && i < names.length - 1) { x /= step; i++; }
  return digits(x) + " " + names[i];
};
const units = {
  rate: (x) => x === null ? "–" : digits(x) + "/s",
  count: digits,
  bytes: (x) => scaled(x, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]),
  byteRate: (x) => x === null ? "–" : scaled(x, 1024, ["B", "KiB", "MiB", "GiB"]) + "/s",
  money: (x) => x === null ? "–" : x.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 }),
  percent: (x) => x === null ? "–" : digits(x * 100) + " %",
  yes: (x) => x === null ? "–" : x ? "yes" : "no",
  time: (x) => x === null ? "–" : x === 0 ? "0 s" : x >= 120 ? digits(x / 60) + " min" : x >= 1 ? digits(x) + " s"
    : x >= 1e-3 ? digits(x * 1e3) + " ms" : digits(x * 1e6) + " µs",
};

// --- Drawing -----------------------------------------------------------------------------------------------------------

const svgNs = "http://www.w3.org/2000/svg";
function element(tag, attributes, ...children) {
  const node = tag === "svg" || tag === "polyline" || tag === "line"
    ? document.createElementNS(svgNs, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
function setText(node, text) { if (node.textContent !== text) node.textContent = text; }

// One number.
function tile(id, label, unit, read, isBad) {
  const number = element("b", {}, "–");
  const node = element("div", { class: "card tile", id: "tile-" + id }, number, element("span", {}, label));
  return { node, update(now, before) {
    const value = read(now, before);
    setText(number, units[unit](value));
    node.dataset.value = value === null ? "" : value;
    node.title = value === null ? "" : label + ": " + value.toLocaleString("en", { maximumFractionDigits: 8 });
    node.classList.toggle("bad", Boolean(isBad && value !== null && isBad(value, now)));
  } };
}

// Lines over time, with the latest values below. `read` gives [[name, value], …]; lines that are new come to the end.
function chart(id, title, unit, read) {
  const svg = element("svg", { viewBox: "0 0 100 50", preserveAspectRatio: "none", role: "img", "aria-label": title });
  svg.append(element("line", { x1: 0, y1: 50, x2: 100, y2: 50 }), element("line", { x1: 0, y1: 0, x2: 100, y2: 0 }));
  const top = element("span", {}), body = element("tbody");
  const table = element("table", { "aria-label": title + ", now" }, body);
  const node = element("section", { class: "card", id: "chart-" + id, "aria-label": title },
    element("header", {}, element("h3", {}, title), top), svg, table);
  const lines = new Map();
  let ticks = 0;
  return { node, update(now, before) {
    ticks++;
    for (const [name, value] of read(now, before)) {
      if (!lines.has(name)) {
        const color = "s" + lines.size % 8, cell = element("td", {});
        const row = element("tr", {}, element("th", { scope: "row" },
          element("i", { class: color, "aria-hidden": "true" }, "●"), name), cell);
        const polyline = element("polyline", { class: color });
        lines.set(name, { points: [], cell, row, polyline });
        body.append(row);
        svg.append(polyline);
      }
      const line = lines.get(name);
      line.points.push([ticks, value]);
      if (line.points.length > POINTS) line.points.shift();
      setText(line.cell, units[unit](value));
    }
    const all = [...lines.values()].flatMap((line) => line.points.map((point) => point[1] || 0));
    const high = Math.max(...all, 0) || 1;
    setText(top, "max " + units[unit](Math.max(...all, 0)));
    for (const line of lines.values()) {
      // What never happened needs no line.
      line.row.hidden = lines.size > 6 && line.points.every((point) => !point[1]);
      line.polyline.setAttribute("points", line.points.filter((point) => point[1] !== null).map(([tick, value]) =>
        (100 - (ticks - tick) * 100 / (Math.min(Math.max(ticks, POINTS_MIN), POINTS) - 1)).toFixed(2) + "," + (50 - value / high * 48).toFixed(2)).join(" "));
    }
  } };
}

// --- What is shown -----------------------------------------------------------------------------------------------------

const WORK = { withdraw: 1, "batch-withdraw": 1, deposit: 1, "batch-deposit": 1, melt: 1, reveal: 1, refund: 1, recoup: 1,
  "recoup-refresh": 1, csr: 1, transfer: 1, "add-incoming": 1, withdrawal: 1, account: 1, create_accounts: 1, create_transfers: 1,
  lookup: 1, query: 1, prepare: 1, fulfil: 1, error: 1, get: 1, "bulk-prepare": 1, "bulk-fulfil": 1, "bulk-error": 1 };
const workTime = (now, before, q) => {
  // Long polls are no work: only operations that answer at once.
  const all = new Map();
  for (const operation of values(now.samples, "batzen_operation_seconds_count", "operation")) {
    if (!WORK[operation]) continue;
    for (const [bound, count] of buckets(now, before, "batzen_operation_seconds", { operation }))
      all.set(bound, (all.get(bound) || 0) + count);
  }
  return quantile([...all].sort((x, y) => x[0] - y[0]), q);
};
const workRate = (now, before) => {
  let total = null;
  for (const operation of values(now.samples, "batzen_operations_total", "operation")) {
    const part = WORK[operation] ? rate(now, before, "batzen_operations_total", { operation, outcome: "done" }) : null;
    if (part !== null) total = (total || 0) + part;
  }
  return total;
};
const gauge = (name, wanted) => (now) => sum(now.samples, name, wanted);
const perSecond = (name, wanted) => (now, before) => rate(now, before, name, wanted);
const each = (name, label, read, only) => (now, before) => values(now.samples, name, label)
  .filter((value) => !only || only(value)).map((value) => [value, read(now, before, value)]);
// Half and 99 of 100 of a histogram; `whole`: numbers of things.
const spread = (name, whole) => (now, before) => {
  const list = buckets(now, before, name);
  return [["half", quantile(list, .5, whole)], ["99 of 100", quantile(list, .99, whole)]];
};
const some = (n) => n > 0;
const stages = (q) => (now, before) => ["prefetch", "execute", "commit"].map((stage) =>
  [stage, quantile(buckets(now, before, "batzen_lane_stage_seconds", { stage }), q)]);

// [section, metric that it needs, [panels]]
const layout = [
  ["Now", "batzen_lane_queued", [
    tile("work", "operations done", "rate", workRate),
    tile("p50", "answer time, half", "time", (now, before) => workTime(now, before, .5)),
    tile("p99", "answer time, 99 of 100", "time", (now, before) => workTime(now, before, .99)),
    tile("queue", "commands waiting", "count", gauge("batzen_lane_queued"),
      (value, now) => value > .5 * sum(now.samples, "batzen_lane_queue_limit")),
    tile("cpu", "processors busy", "count", perSecond("process_cpu_seconds_total")),
    tile("failed", "failed since the start", "count", (now) => values(now.samples, "batzen_operations_total", "operation")
      .filter((operation) => WORK[operation])
      .reduce((n, operation) => n + sum(now.samples, "batzen_operations_total", { operation, outcome: "failed" }), 0),
    some),
  ]],
  ["Money", "batzen_money_issued", [
    tile("wired-in", "came in from banks", "money", gauge("batzen_money_wired_in")),
    tile("reserves", "in reserves", "money", gauge("batzen_money_reserves")),
    tile("issued", "issued as coins", "money", gauge("batzen_money_issued")),
    tile("redeemed", "redeemed", "money", gauge("batzen_money_redeemed")),
    tile("outstanding", "outstanding in wallets", "money", gauge("batzen_money_outstanding")),
    tile("pending", "owed to merchants", "money", gauge("batzen_money_pending")),
    tile("wired-out", "paid out to banks", "money", gauge("batzen_money_wired_out")),
    tile("surplus", "surplus (fees)", "money", gauge("batzen_money_surplus"), (value) => value < 0),
  ]],
  ["Ledger", "batzen_ledger_events_total", [
    tile("transfers-made", "transfers made", "rate",
      perSecond("batzen_ledger_events_total", { kind: "transfer", outcome: "created" })),
    tile("ledger-p99", "made durable, 99 of 100", "time", (now, before) =>
      quantile(buckets(now, before, "batzen_ledger_commit_seconds"), .99)),
    tile("events-waiting", "events waiting", "count", gauge("batzen_ledger_queue_events")),
    tile("transfers", "transfers", "count", gauge("batzen_ledger_transfers")),
    tile("pendings", "transfers pending", "count", gauge("batzen_ledger_pendings")),
    tile("accounts", "accounts", "count", gauge("batzen_ledger_accounts")),
    tile("ledger-busy", "requests turned away", "count", gauge("batzen_ledger_busy_total"), some),
    tile("ledger-failed", "batches undone", "count", gauge("batzen_ledger_batches_failed_total"), some),
    chart("events", "Transfers by outcome, a second", "rate", each("batzen_ledger_events_total", "outcome",
      (now, before, outcome) => rate(now, before, "batzen_ledger_events_total", { kind: "transfer", outcome }))),
    chart("asked", "Requests, a second", "rate", each("batzen_ledger_requests_total", "kind",
      (now, before, kind) => rate(now, before, "batzen_ledger_requests_total", { kind }))),
    chart("ledger-batch", "Events in a batch", "count", spread("batzen_ledger_batch_events", true)),
    chart("ledger-times", "Time of a batch, half", "time", (now, before) => [
      ["execute", quantile(buckets(now, before, "batzen_ledger_execute_seconds"), .5)],
      ["commit", quantile(buckets(now, before, "batzen_ledger_commit_seconds"), .5)]]),
    chart("ledger-memory", "Memory of the state", "bytes", each("batzen_ledger_memory_bytes", "part",
      (now, before, part) => sum(now.samples, "batzen_ledger_memory_bytes", { part }))),
  ]],
  ["Network", "batzen_ledger_net_requests_total", [
    tile("net-connections", "connections", "count", gauge("batzen_ledger_net_connections_open")),
    tile("net-errors", "answered with an error", "count", gauge("batzen_ledger_net_errors_total"), some),
    tile("net-busy", "answered with busy", "count", gauge("batzen_ledger_net_busy_total"), some),
    chart("net-requests", "Requests, a second", "rate", each("batzen_ledger_net_requests_total", "kind",
      (now, before, kind) => rate(now, before, "batzen_ledger_net_requests_total", { kind }))),
    chart("net-batch", "Events given to the ledger at once", "count", spread("batzen_ledger_net_batch_events", true)),
    chart("net-bytes", "Bytes, a second", "byteRate", (now, before) => [
      ["received", rate(now, before, "batzen_ledger_net_received_bytes_total")],
      ["sent", rate(now, before, "batzen_ledger_net_sent_bytes_total")]]),
  ]],
  ["Switch", "batzen_switch_batch_commands_count", [
    tile("switch-work", "requests done", "rate", workRate),
    tile("switch-p99", "answer time, 99 of 100", "time", (now, before) => workTime(now, before, .99)),
    tile("switch-queue", "requests waiting", "count", gauge("batzen_switch_waiting_requests")),
    tile("intents", "transfers waiting for the ledger", "count", gauge("batzen_switch_open_intents")),
    tile("callbacks-done", "callbacks acknowledged", "count", gauge("batzen_switch_callbacks_total")),
    tile("given-up", "callbacks given up", "count", gauge("batzen_switch_callbacks_given_up_total"), some),
    tile("near-cap", "positions beyond their alarm threshold", "count", gauge("batzen_switch_near_cap"), some),
    tile("over-limit", "participants over their limit", "count", gauge("batzen_switch_over_limit"), some),
    tile("switch-rejected", "requests turned away", "count", gauge("batzen_switch_rejected_total"), some),
    tile("switch-failed", "batches not committed", "count", gauge("batzen_switch_failed_batches_total"), some),
    tile("unsettled", "gross settlements refused", "count", gauge("batzen_switch_gross_unsettled_total"), some),
    tile("misfits", "answers that do not fit the books", "count", gauge("batzen_switch_ledger_broken_total"), some),
    chart("callbacks", "Callbacks, a second", "rate", (now, before) => [
      ["acknowledged", rate(now, before, "batzen_switch_callbacks_total")],
      ["attempts that failed", rate(now, before, "batzen_switch_callbacks_failed_total")]]),
    chart("callback-time", "From commit to acknowledgement", "time", spread("batzen_switch_callback_seconds")),
    chart("switch-batch", "Commands in a batch", "count", spread("batzen_switch_batch_commands", true)),
    chart("switch-times", "Time of a batch", "time", spread("batzen_switch_batch_seconds")),
    chart("switch-ledger", "Time of a request to the ledger", "time", spread("batzen_switch_ledger_seconds")),
    chart("switch-events", "Events in a request to the ledger", "count", spread("batzen_switch_ledger_events", true)),
  ]],
  ["Signer", "batzen_signer_items_total", [
    tile("primary", "creates keys", "yes", gauge("batzen_signer_primary")),
    tile("keys", "private keys", "count", gauge("batzen_signer_keys")),
    tile("signer-connections", "connections", "count", gauge("batzen_signer_connections")),
    tile("synced", "behind the primary", "time", gauge("batzen_signer_sync_lag_seconds"), (value) => value > 300),
    tile("strangers", "failed handshakes", "count", gauge("batzen_signer_handshakes_failed_total"), some),
    tile("signer-busy", "requests turned away", "count", gauge("batzen_signer_busy_total"), some),
    tile("forbidden", "requests beyond a client's role", "count", gauge("batzen_signer_forbidden_total"), some),
    chart("items", "Items, a second", "rate", each("batzen_signer_items_total", "kind",
      (now, before, kind) => rate(now, before, "batzen_signer_items_total", { kind }))),
    chart("signer-time", "From a request to its answer", "time", spread("batzen_signer_request_seconds")),
    chart("unsigned", "Items not signed, all", "count", each("batzen_signer_refused_total", "reason",
      (now, before, reason) => sum(now.samples, "batzen_signer_refused_total", { reason }))),
  ]],
  ["Operations", "batzen_operations_total", [
    chart("operations", "Done, a second", "rate", each("batzen_operations_total", "operation",
      (now, before, operation) => rate(now, before, "batzen_operations_total", { operation, outcome: "done" }),
      (operation) => WORK[operation])),
    chart("latency", "Answer time", "time", (now, before) =>
      [["half", workTime(now, before, .5)], ["99 of 100", workTime(now, before, .99)]]),
    chart("outcomes", "Not done, a second", "rate", each("batzen_operations_total", "outcome",
      (now, before, outcome) => rate(now, before, "batzen_operations_total", { outcome }), (outcome) => outcome !== "done")),
  ]],
  ["Coins", "batzen_coins_total", [
    chart("coins", "Coins, a second", "rate", each("batzen_coins_total", "operation",
      (now, before, operation) => rate(now, before, "batzen_coins_total", { operation }))),
    chart("conflicts", "Conflicts, all", "count", each("batzen_conflicts_total", "reason",
      (now, before, reason) => sum(now.samples, "batzen_conflicts_total", { reason }))),
    chart("repeats", "Repeated coins, all", "count", each("batzen_repeated_coins_total", "operation",
      (now, before, operation) => sum(now.samples, "batzen_repeated_coins_total", { operation }))),
  ]],
  ["Batches", "batzen_lane_batch_commands_count", [
    chart("batch", "Commands in a batch", "count", (now, before) => [
      ["mean", mean(now, before, "batzen_lane_batch_commands")],
      ["99 of 100", quantile(buckets(now, before, "batzen_lane_batch_commands"), .99, true)]]),
    chart("batches", "Batches, a second", "rate", (now, before) => [
      ["batches", rate(now, before, "batzen_lane_batch_commands_count")],
      ["commands", rate(now, before, "batzen_lane_commands_total")]]),
    chart("stages", "Time of a batch, half", "time", stages(.5)),
    chart("queued", "Waiting", "count", (now) => [["commands", sum(now.samples, "batzen_lane_queued")],
      ...(now.samples.has("batzen_pool_queued") ? [["items for the processors", sum(now.samples, "batzen_pool_queued")]] : [])]),
  ]],
  ["Cryptography", "batzen_pool_items_total", [
    chart("crypto", "Items, a second", "rate", each("batzen_pool_items_total", "kind",
      (now, before, kind) => rate(now, before, "batzen_pool_items_total", { kind }))),
    chart("lanes", "Items in a batch, mean", "count", each("batzen_pool_items_total", "kind",
      (now, before, kind) => mean(now, before, "batzen_pool_batch_items", { kind }))),
    chart("busy", "Processors busy", "count", each("batzen_pool_items_total", "kind",
      (now, before, kind) => rate(now, before, "batzen_pool_batch_seconds_sum", { kind }))),
    chart("wait", "Wait for a processor", "time", each("batzen_pool_items_total", "kind",
      (now, before, kind) => quantile(buckets(now, before, "batzen_pool_wait_seconds", { kind }), .5))),
  ]],
  ["Workers", "batzen_worker_wirewatch_credits_total", [
    chart("lag", "Lag", "time", (now) => [
      ["credits", sum(now.samples, "batzen_worker_wirewatch_lag_seconds")],
      ["aggregation", sum(now.samples, "batzen_worker_aggregator_lag_seconds")],
      ["transfers", sum(now.samples, "batzen_worker_transfer_lag_seconds")]]),
    chart("worked", "Done, a second", "rate", (now, before) => [
      ["credits", rate(now, before, "batzen_worker_wirewatch_credits_total")],
      ["deposits aggregated", rate(now, before, "batzen_worker_aggregator_deposits_total")],
      ["transfers", rate(now, before, "batzen_worker_transfer_done_total")],
      ["reserves closed", rate(now, before, "batzen_worker_closer_reserves_total")]]),
    tile("transfers-failed", "transfers refused for good", "count", gauge("batzen_worker_transfer_failed_total"), some),
    tile("bank-failures", "failed calls to the bank", "count", (now) =>
      sum(now.samples, "batzen_worker_wirewatch_failures_total") + sum(now.samples, "batzen_worker_transfer_retries_total")),
  ]],
  ["Store", "batzen_store_rows", [
    tile("disk", "on disk", "bytes", gauge("batzen_store_disk_bytes")),
    tile("live", "of it live", "percent", (now) => {
      const disk = sum(now.samples, "batzen_store_disk_bytes");
      return disk ? sum(now.samples, "batzen_store_live_bytes") / disk : null;
    }),
    tile("rows", "rows", "count", gauge("batzen_store_rows")),
    tile("index", "memory of indexes", "bytes", gauge("batzen_store_index_bytes")),
    tile("free", "free on the disk", "bytes", gauge("batzen_store_disk_free_bytes"), (value) => value < 1 << 30),
    chart("fsync", "Commit, disk wait", "time", (now, before) => {
      const list = buckets(now, before, "batzen_store_sync_seconds");
      return [["half", quantile(list, .5)], ["99 of 100", quantile(list, .99)]];
    }),
    chart("written", "Written, a second", "byteRate", (now, before) =>
      [["journal", rate(now, before, "batzen_store_written_bytes_total")]]),
    chart("tables", "Rows of the largest tables", "count", (now) => (now.samples.get("batzen_store_table_rows") || [])
      .map(({ labels, value }) => [labels.table, value]).sort((x, y) => y[1] - x[1]).slice(0, 6)),
  ]],
  ["Process", "process_resident_memory_bytes", [
    chart("processors", "All processors", "count", (now, before) => [["cores", rate(now, before, "process_cpu_seconds_total")]]),
    chart("memory", "Memory", "bytes", (now) => [["resident", sum(now.samples, "process_resident_memory_bytes")]]),
    chart("http", "HTTP, a second", "rate", each("batzen_http_responses_total", "class",
      (now, before, name) => rate(now, before, "batzen_http_responses_total", { class: name }))),
    chart("connections", "Connections", "count", (now) => [["open", sum(now.samples, "batzen_http_connections_open")],
      ["requests in work", sum(now.samples, "batzen_http_requests_in_flight")]]),
  ]],
];

const shown = new Map();
function show(section, needs, panels, now, before) {
  if (!now.samples.has(needs)) return;
  if (!shown.has(section)) {
    const id = "section-" + section.toLowerCase();
    const tiles = panels.filter((panel) => panel.node.classList.contains("tile")).map((panel) => panel.node);
    const charts = panels.filter((panel) => !panel.node.classList.contains("tile")).map((panel) => panel.node);
    const node = element("section", { id, "aria-labelledby": id + "-title" }, element("h2", { id: id + "-title" }, section));
    if (tiles.length) node.append(element("div", { class: "tiles " + id }, ...tiles));
    if (charts.length) node.append(element("div", { class: "cards" }, ...charts));
    shown.set(section, node);
    // In the order of the layout, whenever a section comes.
    byId("sections").replaceChildren(...layout.map(([name]) => shown.get(name)).filter(Boolean));
  }
  for (const panel of panels) panel.update(now, before);
}

// --- The round ---------------------------------------------------------------------------------------------------------

let last = null, answered = null;
async function read() {
  const response = await fetch(url, { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
  if (!response.ok) throw new Error("it answers with status " + response.status);
  return { time: performance.now(), samples: parse(await response.text()) };
}
function alive(now) {
  const build = (now.samples.get("batzen_build_info") || [{ labels: {} }])[0].labels;
  setText(byId("service"), build.service || "");
  document.title = "Batzen " + (build.service || "dashboard");
  setText(byId("build"), build.version ? "Version " + build.version + "." : "");
  const start = sum(now.samples, "process_start_time_seconds");
  const state = byId("state");
  state.className = "live";
  setText(state, start ? "live, up " + units.time(Math.max(0, Math.round(Date.now() / 1000 - start))) : "live");
  byId("down").hidden = true;
  byId("sections").classList.remove("stale");
}
function lost(error) {
  const state = byId("state"), down = byId("down");
  state.className = "lost";
  setText(state, "no answer");
  const since = answered ? "since " + answered.toLocaleTimeString() : "so far";
  const why = error instanceof TypeError ? "the connection is refused or cut"
    : error.name === "TimeoutError" ? "it takes too long" : error.message;
  setText(down, "The service does not answer (" + why + "), " + since + ". The figures below are old.");
  down.hidden = false;
  byId("sections").classList.add("stale");
}
async function round() {
  const begun = performance.now();
  if (!document.hidden) {
    try {
      const now = await read();
      answered = new Date();
      alive(now);
      // A reading from long ago, or before a restart, says nothing about this second.
      const before = last && now.time - last.time < 10 * INTERVAL_MS ? last : null;
      for (const [section, needs, panels] of layout) show(section, needs, panels, now, before);
      last = now;
    } catch (error) {
      lost(error);
    }
  }
  setTimeout(round, Math.max(100, INTERVAL_MS - (performance.now() - begun)));
}
document.addEventListener("visibilitychange", () => { last = null; });
round();
