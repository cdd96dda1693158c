// Transfers of exchanges to the shop's accounts, and reports of those that the bank has booked.

import { ask, get, query } from "./api.js";
import { badge, facts, h, say, title, unseen } from "./dom.js";
import { check, doing, field, some, sure } from "./forms.js";
import { amountOf, currencyName, shownAmount, time, typed } from "./money.js";

const PAGE = 50;
const CHECKS = [["", "All transfers"], ["yes", "Verified"], ["no", "Not verified"]];

// What the backend gets about a transfer of the list.
const wishOf = ({ credit_amount, wtid, payto_uri, exchange_url }) => ({ credit_amount, wtid, payto_uri, exchange_url });

const row = (one, { remove, report }) => h("tr", {},
  h("td", { class: "when" }, one.execution_time ? time(one.execution_time) : "not known"),
  h("td", { class: "what" },
    h("strong", {}, one.exchange_url), h("span", { class: "note" }, one.wtid), h("span", { class: "note" }, one.payto_uri)),
  h("td", { class: "state" },
    one.confirmed ? badge("good", "Arrived") : badge("waiting", "Announced"), " ",
    one.verified ? badge("good", "Verified") : badge("waiting", "Not verified")),
  h("td", { class: "sum" }, one.confirmed || one.verified ? shownAmount(one.credit_amount) : "not known",
    one.verified ? null : h("div", { class: "row" },
      one.confirmed ? h("button", { type: "button", class: "quiet", click: doing(() => report(wishOf(one))) }, "Ask again", unseen(" about transfer " + one.wtid)) : null,
      sure({ text: "Forget", about: "transfer " + one.wtid, question: "Really forget?", work: () => remove(one) }))));

const result = (answer) => h("section", { id: "transfer-result", "aria-labelledby": "transfer-result-title" },
  h("h3", { id: "transfer-result-title", tabindex: "-1" }, "The exchange confirms this transfer"),
  facts([["Total", shownAmount(answer.total)], ["Wire fee", shownAmount(answer.wire_fee)], ["Made", time(answer.execution_time)]]),
  h("h4", {}, "Orders"),
  h("ul", { class: "lines" }, answer.deposits_sums.map((one) => h("li", {},
    h("a", { href: "#/order/" + encodeURIComponent(one.order_id) }, one.order_id),
    h("span", { class: "sum" }, shownAmount(one.deposit_value), h("span", { class: "note" }, " fee " + shownAmount(one.deposit_fee)))))));

const reportForm = (accounts, exchanges, report) => {
  const form = h("form", { id: "report", novalidate: true },
    field({ id: "report-account", name: "payto", label: "Account that got the money", options: accounts.map((uri) => [uri, uri]) }),
    field({ id: "report-amount", name: "amount", label: "Amount in " + currencyName(), inputmode: "decimal", required: true }),
    field({ id: "report-wtid", name: "wtid", label: "Subject of the transfer", hint: "52 letters and digits in the transfer's subject.", spellcheck: "false", required: true }),
    field({ id: "report-exchange", name: "exchange", label: "Address of the exchange", hint: "It is in the transfer's subject, too.", type: "url", list: "report-exchanges", required: true }),
    h("datalist", { id: "report-exchanges" }, exchanges.map((url) => h("option", { value: url }))),
    h("button", { type: "submit" }, "Report transfer"));
  form.addEventListener("submit", doing(async () => {
    const { payto, amount, wtid, exchange } = form.elements;
    const units = typed(amount.value);
    if (!check(form, [
      ["amount", some, "Enter an amount."],
      ["amount", () => units !== null && units > 0n, "Enter an amount such as 12.50."],
      ["wtid", (text) => /^[0-9A-Za-z]{52}$/.test(text.trim()), "Enter the 52 letters and digits of the subject."],
      ["exchange", (text) => /^https?:\/\/./.test(text.trim()), "Enter the address, which begins with https://."],
    ])) return;
    const url = exchange.value.trim().replace(/\/*$/, "/");
    const wish = { credit_amount: amountOf(units), wtid: wtid.value.trim().toUpperCase(), payto_uri: payto.value, exchange_url: url };
    await report(wish);
  }, form));
  return form;
};

export const transfers = async (place, { query: params, signal, reload, shop }) => {
  const verified = ["yes", "no"].includes(params.get("verified")) ? params.get("verified") : "";
  const offset = params.get("before");
  const { transfers: found } = await get("private/transfers" + query({ verified, limit: -(PAGE + 1), offset }), { signal });
  const list = found.slice(0, PAGE);
  const remove = async (one) => {
    await ask("DELETE", "private/transfers/" + one.transfer_serial_id, undefined, { signal });
    await reload();
    say("The transfer is forgotten.");
  };
  const report = async (wish) => {
    const answer = await ask("POST", "private/transfers", wish, { signal }).catch(async (error) => {
      // Without a field to be corrected the transfer is in the list, and the exchange can be asked again.
      if (!error.field) await reload();
      throw error;
    });
    await reload();
    say("The transfer is recorded.");
    const shown = result(answer);
    document.querySelector("#view .view").append(shown);
    shown.querySelector("h3").focus();
  };
  const filter = h("form", { id: "transfer-filter", class: "filters" },
    field({ id: "transfer-verified", name: "verified", label: "Show", options: CHECKS, value: verified }));
  filter.addEventListener("change", doing(() => { location.hash = "#/transfers" + query({ verified: filter.elements.verified.value }); }));
  const table = h("table", { id: "transfers" },
    h("caption", { class: "unseen" }, "Transfers, the latest first"),
    h("thead", {}, h("tr", {}, ["Time", "Transfer", "State"].map((name) => h("th", { scope: "col" }, name)), h("th", { scope: "col", class: "sum" }, "Amount"))),
    h("tbody", {}, list.map((one) => row(one, { remove, report }))));
  const link = (text, more) => h("a", { class: "button quiet", href: "#/transfers" + query({ verified, ...more }) }, text);
  const reports = h("section", { "aria-labelledby": "report-title" });
  const accounts = shop.details.accounts.map((one) => one.payto_uri);
  const exchanges = [...new Set(found.map((one) => one.exchange_url))];
  reports.append(
    h("h3", { id: "report-title" }, "Report a transfer"),
    h("p", { class: "hint" }, "When your bank has booked a transfer of an exchange, report it here: the backend asks the exchange for which orders it is."),
    accounts.length ? reportForm(accounts, exchanges, report) : h("p", { class: "note" }, "Add a bank account first."));
  place.append(
    title("Transfers"),
    h("section", {},
      filter,
      list.length ? table : h("p", { id: "nothing", class: "note" }, verified || offset ? "No transfer fits." : "No transfers yet."),
      h("nav", { class: "row pages", "aria-label": "Pages" },
        offset ? link("Newest", {}) : null,
        found.length > PAGE ? link("Older", { before: list[list.length - 1].transfer_serial_id }) : null)),
    reports);
};
