// The list of orders: filters, search, pages, and a file for spreadsheets.

import { get, query } from "./api.js";
import { badge, download, h, say, title, unseen } from "./dom.js";
import { doing, field } from "./forms.js";
import { currencyName, plain, shownAmount, time, unitsOf } from "./money.js";

// Orders on a page, and in one request of a search or a download.
const PAGE = 50;
const BATCH = 500;
// The most orders in one file.
const FILE_MAX = 100_000;
// How long the backend waits for a new order before it answers.
const POLL_MS = 20_000;

const STATES = [
  ["", "All orders"], ["unpaid", "Not paid"], ["paid", "Paid"], ["refunded", "Refunded"],
  ["wired", "Transferred to your bank"], ["owed", "Paid, but not transferred"],
];
const CONDITIONS = { unpaid: { paid: "no" }, paid: { paid: "yes" }, refunded: { refunded: "yes" }, wired: { wired: "yes" }, owed: { paid: "yes", wired: "no" } };

// Seconds at the beginning of a day in the local time of the shop, days later.
const dayStart = (text, days = 0) => {
  const [year, month, day] = text.split("-").map(Number);
  return Math.floor(new Date(year, month - 1, day + days).getTime() / 1_000);
};

// What the address says about the list.
const wishOf = (params) => ({
  state: CONDITIONS[params.get("state")] ? params.get("state") : "",
  text: (params.get("q") || "").trim(),
  from: params.get("from") || "",
  to: params.get("to") || "",
  before: params.get("before"),
  after: params.get("after"),
});

const hashOf = (wish) => "#/orders" + query({
  state: wish.state, q: wish.text, from: wish.from, to: wish.to, before: wish.before, after: wish.after,
});

// All orders that fit, from the latest to the earliest; or the other way round from one that is named.
async function* scan(wish, { isAscending, start, least, signal, tell }) {
  const needle = wish.text.toLowerCase();
  const fits = ({ order_id: id, summary }) => !needle || id.toLowerCase().includes(needle) || summary.toLowerCase().includes(needle);
  const [from, to] = [wish.from && dayStart(wish.from), wish.to && dayStart(wish.to, 1) - 1];
  const size = needle ? BATCH : least;
  let seen = 0;
  for (let next = start; ;) {
    const { orders } = await get("private/orders" + query({
      ...CONDITIONS[wish.state], delta: isAscending ? size : -size, start: next, date_s: isAscending ? from : to,
    }), { signal });
    for (const order of orders) {
      const { t_s: seconds } = order.timestamp;
      if (isAscending ? to && seconds > to : from && seconds < from) return;
      if (fits(order)) yield order;
    }
    if (orders.length < size) return;
    next = orders[orders.length - 1].row_id;
    seen += orders.length;
    tell(seen);
  }
}

const take = async (iterator, count) => {
  const found = [];
  for await (const one of iterator) {
    found.push(one);
    if (found.length === count) break;
  }
  return found;
};

// Which orders of a page were refunded or transferred: the list itself does not say.
const marksOf = async (list, signal) => {
  if (!list.some((one) => one.paid)) return { refunded: new Set(), wired: new Set() };
  const last = Math.min(...list.map((one) => one.row_id));
  const idsOf = async (condition) => {
    const { orders } = await get("private/orders" + query({ ...condition, delta: list.length, start: last - 1 }), { signal });
    return new Set(orders.map((one) => one.order_id));
  };
  const [refunded, wired] = await Promise.all([idsOf({ refunded: "yes" }), idsOf({ wired: "yes" })]);
  return { refunded, wired };
};

const stateOf = (one, { refunded, wired }) => {
  if (!one.paid) return badge("waiting", "Not paid");
  if (refunded.has(one.order_id)) return badge("refunded", "Refunded");
  return badge("good", wired.has(one.order_id) ? "Transferred" : "Paid");
};

const row = (one, marks) => h("tr", {},
  h("td", { class: "when" }, time(one.timestamp)),
  h("td", { class: "what" },
    h("a", { href: "#/order/" + encodeURIComponent(one.order_id) }, one.summary || "(no summary)"),
    h("span", { class: "note" }, one.order_id)),
  h("td", { class: "state" }, stateOf(one, marks)),
  h("td", { class: "sum" }, shownAmount(one.amount)));

// --- The file ------------------------------------------------------------------------------------------------------

// A text as a field of the file. Spreadsheets take some texts for formulas; an apostrophe keeps them texts.
const cell = (text) => {
  const harmless = /^[=+\-@\t\r]/.test(text) ? "'" + text : text;
  return /[",\r\n]/.test(harmless) ? '"' + harmless.replace(/"/g, '""') + '"' : harmless;
};

const save = async (wish, signal) => {
  const lines = ["order_id,time,summary,amount,currency,paid,refundable"];
  const tell = (count) => say("Reading orders: " + count + " so far …");
  const all = scan({ ...wish, before: null, after: null }, { least: BATCH, signal, tell });
  let isCut = false;
  for await (const one of all) {
    if (lines.length > FILE_MAX) {
      isCut = true;
      break;
    }
    lines.push([
      cell(one.order_id), new Date(one.timestamp.t_s * 1_000).toISOString(), cell(one.summary), plain(unitsOf(one.amount)), currencyName(),
      one.paid ? "yes" : "no", one.refundable ? "yes" : "no",
    ].join(","));
  }
  download("orders.csv", "text/csv", lines.join("\r\n") + "\r\n");
  const count = lines.length - 1;
  say((count === 1 ? "1 order is" : count + " orders are") + " in the file." + (isCut ? " There are more: choose fewer days." : ""), isCut);
};

// --- The view ------------------------------------------------------------------------------------------------------

const filters = (wish, signal) => {
  const apply = doing(({ currentTarget }) => {
    const { state, q, from, to } = (currentTarget || form).elements;
    location.hash = hashOf({ state: state.value, text: q.value.trim(), from: from.value, to: to.value });
  });
  const form = h("form", { id: "filters", class: "filters", novalidate: true, role: "search", "aria-label": "Orders", submit: apply, change: apply },
    field({ id: "filter-state", name: "state", label: "Show", options: STATES, value: wish.state }),
    field({ id: "filter-text", name: "q", label: "Search", type: "search", placeholder: "Summary or order id", value: wish.text }),
    field({ id: "filter-from", name: "from", label: "From", type: "date", value: wish.from }),
    field({ id: "filter-to", name: "to", label: "To", type: "date", value: wish.to }),
    h("div", { class: "row" },
      h("button", { type: "submit" }, "Search"),
      h("button", { type: "button", class: "quiet", id: "csv", click: doing(() => save(wish, signal)) }, "Download", unseen(" these orders"), " (CSV)")));
  return form;
};

const load = async (wish, signal) => {
  const tell = (count) => { if (wish.text) say("Searching: " + count + " orders so far …"); };
  const isAscending = Boolean(wish.after);
  const start = wish.after || wish.before || undefined;
  const found = await take(scan(wish, { isAscending, start, least: PAGE + 1, signal, tell }), PAGE + 1);
  if (wish.text) say("");
  const hasMore = found.length > PAGE;
  const list = found.slice(0, PAGE);
  if (isAscending) list.reverse();
  const marks = await marksOf(list, signal);
  return { list, marks, hasNewer: isAscending ? hasMore : Boolean(wish.before), hasOlder: isAscending || hasMore };
};

const pages = (wish, { list, hasNewer, hasOlder }) => {
  const link = (text, more) => h("a", { class: "button quiet", href: hashOf({ ...wish, before: null, after: null, ...more }) }, text);
  const [first, last] = [list[0], list[list.length - 1]];
  return h("nav", { class: "row pages", "aria-label": "Pages" },
    hasNewer && first ? link("Newest", {}) : null,
    hasNewer && first ? link("Newer", { after: first.row_id }) : null,
    hasOlder && last ? link("Older", { before: last.row_id }) : null);
};

const table = ({ list, marks }) => h("table", { id: "orders" },
  h("caption", { class: "unseen" }, "Orders, the latest first"),
  h("thead", {}, h("tr", {},
    h("th", { scope: "col" }, "Time"), h("th", { scope: "col" }, "Order"), h("th", { scope: "col" }, "State"),
    h("th", { scope: "col", class: "sum" }, "Amount"))),
  h("tbody", {}, list.map((one) => row(one, marks))));

const nothing = (wish) => {
  const isFiltered = wish.state || wish.text || wish.from || wish.to;
  return h("p", { id: "nothing", class: "note" }, isFiltered ? "No order fits." : "No orders yet. ",
    isFiltered ? null : h("a", { href: "#/new" }, "Create the first one"));
};

export const orders = async (place, { query: params, signal }) => {
  const wish = wishOf(params);
  const results = h("div", { id: "results" });
  const draw = (loaded) => {
    // A reload in the background must not take away the focus.
    const focused = results.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    results.replaceChildren(loaded.list.length ? table(loaded) : nothing(wish), pages(wish, loaded));
    const same = focused && [...results.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused);
    if (same) same.focus();
  };
  let loaded = await load(wish, signal);
  draw(loaded);
  place.append(
    h("div", { class: "head" }, title("Orders"), h("a", { class: "button", href: "#/new" }, "New order")),
    h("section", {}, filters(wish, signal), results));
  if (!wish.before && !wish.after && !wish.text) follow();

  // The first page shows new orders when they come, and payments soon.
  async function follow() {
    let newest = loaded.list.length ? loaded.list[0].row_id : 0;
    while (!signal.aborted) {
      try {
        const began = Date.now();
        const { orders: fresh } = await get("private/orders" + query({ delta: BATCH, start: newest, timeout_ms: POLL_MS }), { signal });
        if (fresh.length) newest = fresh[fresh.length - 1].row_id;
        const wait = Math.max(0, 1_000 - (Date.now() - began));
        await new Promise((resolve) => { setTimeout(resolve, wait); });
        loaded = await load(wish, signal);
        if (loaded.list.length) newest = Math.max(newest, loaded.list[0].row_id);
        if (!signal.aborted) draw(loaded);
      } catch {
        if (!signal.aborted) await new Promise((resolve) => { setTimeout(resolve, 5_000); });
      }
    }
  }
};

