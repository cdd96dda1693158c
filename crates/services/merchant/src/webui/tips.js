// Tips: reserves at exchanges, and what the shop gives from them.

import { ask, get, qrOf } from "./api.js";
import { badge, copied, facts, h, qrCode, say, title } from "./dom.js";
import { check, doing, field, some, sure } from "./forms.js";
import { amountOf, currencyName, isPast, money, shownAmount, time, typed, unitsOf } from "./money.js";

const isWebUrl = (text) => /^https?:\/\/./i.test(text.trim());

// It is not active before the money is there.
const isAwaited = (one) => unitsOf(one.exchange_initial_amount) === 0n && !isPast(one.expiration_time);

const stateOf = (one) => {
  if (isAwaited(one)) return badge("waiting", "Waits for your transfer");
  return one.active ? badge("good", "Ready") : badge("waiting", "Closed");
};

const row = (one) => h("tr", {},
  h("td", { class: "when" }, time(one.creation_time)),
  h("td", { class: "what" }, h("a", { href: "#/reserve/" + one.reserve_pub }, one.reserve_pub.slice(0, 12) + "…"),
    h("span", { class: "note" }, "Given " + shownAmount(one.committed_amount) + ", taken " + shownAmount(one.pickup_amount))),
  h("td", { class: "state" }, stateOf(one)),
  h("td", { class: "sum" }, shownAmount(one.merchant_initial_amount)));

export const tips = async (place, { signal, shop }) => {
  const { reserves } = await get("private/reserves", { signal });
  reserves.sort((one, other) => other.creation_time.t_s - one.creation_time.t_s);
  const methods = [...new Set(shop.details.accounts.map((one) => one.payto_uri.replace(/^payto:\/\//, "").split("/")[0]))];
  const form = h("form", { id: "new-reserve", novalidate: true },
    field({ id: "reserve-amount", name: "amount", label: "Amount in " + currencyName(), hint: "What you are going to transfer to the exchange.", inputmode: "decimal", required: true }),
    field({ id: "reserve-exchange", name: "exchange", label: "Address of the exchange", type: "url", required: true }),
    field({ id: "reserve-method", name: "method", label: "Wire method", options: (methods.length ? methods : ["iban"]).map((one) => [one, one]) }),
    h("button", { type: "submit" }, "Set up"));
  form.addEventListener("submit", doing(async () => {
    const { amount, exchange, method } = form.elements;
    const units = typed(amount.value);
    if (!check(form, [
      ["amount", some, "Enter an amount."],
      ["amount", () => units !== null && units > 0n, "Enter an amount such as 50.00."],
      ["exchange", isWebUrl, "Enter the address, which begins with https://."],
    ])) return;
    const wish = { initial_balance: amountOf(units), exchange_url: exchange.value.trim().replace(/\/*$/, "/"), wire_method: method.value };
    const made = await ask("POST", "private/reserves", wish, { signal });
    location.hash = "#/reserve/" + made.reserve_pub;
  }, form));
  place.append(
    title("Tips"),
    h("section", {},
      h("p", { class: "hint" }, "You give tips, such as a deposit that comes back or a reward, from money that you keep at an exchange."),
      reserves.length ? h("table", { id: "reserves" },
        h("caption", { class: "unseen" }, "Money for tips, the latest first"),
        h("thead", {}, h("tr", {}, ["Created", "Money at an exchange", "State"].map((name) => h("th", { scope: "col" }, name)), h("th", { scope: "col", class: "sum" }, "Amount"))),
        h("tbody", {}, reserves.map(row))) : h("p", { class: "note", id: "nothing" }, "No money for tips yet.")),
    h("section", { "aria-labelledby": "reserve-title" }, h("h3", { id: "reserve-title" }, "Set up money for tips"), form));
};

// How often the page looks whether the shop's transfer has arrived.
const LOOK_MS = 2_000;

export const reserve = async (place, { param: id, signal, reload }) => {
  const path = "private/reserves/" + id;
  const state = await get(path + "?tips=yes", { signal });
  const funded = unitsOf(state.exchange_initial_amount);
  const left = funded - unitsOf(state.committed_amount);
  const result = h("div");
  const form = h("form", { id: "tip", novalidate: true },
    field({ id: "tip-amount", name: "amount", label: "Amount in " + currencyName(), hint: "Up to " + money(left < 0n ? 0n : left) + ".", inputmode: "decimal", required: true }),
    field({ id: "tip-reason", name: "reason", label: "Reason", maxlength: "500", required: true }),
    field({ id: "tip-next", name: "next", label: "Page that the customer sees afterwards", type: "url", required: true }),
    h("button", { type: "submit" }, "Give tip"));
  form.addEventListener("submit", doing(async () => {
    const { amount, reason, next } = form.elements;
    const units = typed(amount.value);
    if (!check(form, [
      ["amount", some, "Enter an amount."],
      ["amount", () => units !== null && units > 0n, "Enter an amount such as 2.50."],
      ["reason", some, "Enter a reason."],
      ["next", isWebUrl, "Enter the address, which begins with https://."],
    ])) return;
    const wish = { amount: amountOf(units), justification: reason.value.trim(), next_url: next.value.trim() };
    const made = await ask("POST", path + "/authorize-tip", wish, { signal });
    const code = await qrOf(made.taler_tip_uri, { signal });
    form.hidden = true;
    result.replaceChildren(
      h("p", { class: "due" }, "Let your customer scan this code with a wallet, until " + time(made.tip_expiration) + "."),
      qrCode(code, "QR code of the tip"),
      copied("tip-uri", "Link for the wallet", made.taler_tip_uri),
      h("button", { type: "button", click: () => reload() }, "Another tip"));
    say("The tip of " + money(units) + " waits for your customer.");
  }, form));
  const remove = async () => {
    await ask("DELETE", path, undefined, { signal });
    location.hash = "#/tips";
  };
  const given = state.tips || [];
  place.append(
    h("p", { class: "back" }, h("a", { href: "#/tips" }, "← All money for tips")),
    h("div", { class: "head" }, title("Money for tips"), stateOf(state)),
    h("div", { class: "columns" },
      h("section", { "aria-labelledby": "reserve-state" }, h("h3", { id: "reserve-state" }, "Money"),
        isAwaited(state) ? h("div", { id: "reserve-transfer" },
          h("p", {}, "Transfer ", h("strong", {}, shownAmount(state.merchant_initial_amount)), " to the exchange, with this subject:"),
          copied("reserve-pub", "Subject", id), copied("reserve-payto", "Account of the exchange", state.payto_uri)) : null,
        facts([
          ["Exchange", state.exchange_url], ["Arrived", shownAmount(state.exchange_initial_amount)], ["Given in tips", shownAmount(state.committed_amount)],
          ["Taken by customers", shownAmount(state.pickup_amount)], ["Created", time(state.creation_time)], ["The exchange sends the rest back", time(state.expiration_time)],
        ]),
        state.active || isAwaited(state) ? h("div", { class: "row pages" }, sure({ id: "delete-reserve", text: "Close", about: "this", question: "Really close? Tips that wait are lost", work: remove })) : null),
      h("section", { "aria-labelledby": "tips-title" }, h("h3", { id: "tips-title" }, "Tips"),
        funded > 0n && state.active ? [form, result] : h("p", { class: "note" }, isAwaited(state) ? "You can give tips when your transfer has arrived." : "No more tips can be given."),
        given.length ? h("ul", { class: "lines", id: "tip-lines" }, given.map((one) => h("li", {},
          h("span", { class: "what" }, one.reason, h("span", { class: "note" }, one.tip_id.slice(0, 16) + "…")), h("span", { class: "sum" }, shownAmount(one.total_amount))))) : null)));
  if (isAwaited(state)) wait();

  // Shows the money when it is there.
  async function wait() {
    while (!signal.aborted) {
      await new Promise((resolve) => { setTimeout(resolve, LOOK_MS); });
      const now = signal.aborted ? null : await get(path, { signal }).catch(() => null);
      if (now && unitsOf(now.exchange_initial_amount) > 0n && !signal.aborted) {
        await reload();
        say("Your transfer has arrived at the exchange.");
        return;
      }
    }
  }
};
