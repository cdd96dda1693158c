// One order: what it is, how to pay it, whether it was paid, its refunds and transfers.

import { ask, get, qrOf, query } from "./api.js";
import { badge, copied, facts, h, outside, qrCode, say, title } from "./dom.js";
import { check, doing, field, some, sure } from "./forms.js";
import { amountOf, currencyName, isPast, money, plain, shownAmount, time, typed, unitsOf } from "./money.js";

// How long the backend waits for the payment before it answers with the current state: a wallet may have claimed the order.
const POLL_MS = 5_000;
// The pause after a request that failed.
const RETRY_MS = 2_000;
// How long the backend waits until the customer has taken a refund.
const REFUND_POLL_MS = 20_000;

const pause = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

// What an order is called, whatever its state.
const summaryOf = (state) => (state.contract_terms ? state.contract_terms.summary : state.summary) || "Order";
const amountOfOrder = (state) => (state.contract_terms ? state.contract_terms.amount : state.total_amount);

const badgeOf = (state) => {
  if (state.order_status === "unpaid") return badge("waiting", "Not paid");
  if (state.order_status === "claimed") return badge("waiting", "In a wallet");
  const refund = unitsOf(state.refund_amount);
  if (refund > 0n) return badge("refunded", refund < unitsOf(amountOfOrder(state)) ? "Partly refunded" : "Refunded");
  return state.wired ? badge("good", "Paid and transferred") : badge("good", "Paid");
};

// --- Payment -------------------------------------------------------------------------------------------------------

const OFFER = "Let your customer scan this code with a wallet. The page changes by itself when the order is paid.";

// The part about the payment. It is an announcement: screen readers hear when the state changes.
const payment = (id, state, code) => {
  if (state.order_status === "paid") {
    return [h("p", { class: "paid" }, h("span", { class: "tick", "aria-hidden": "true" }, "✓"), " Paid ", h("strong", {}, shownAmount(amountOfOrder(state))))];
  }
  if (state.order_status === "claimed") {
    const isOver = isPast(state.contract_terms.pay_deadline);
    return [h("p", { class: "price" }, shownAmount(state.contract_terms.amount)), h("p", { class: "due" }, isOver
      ? "A wallet has this order, but did not pay it in time."
      : "A customer's wallet has this order and may pay it until " + time(state.contract_terms.pay_deadline) + ". The page changes by itself.")];
  }
  return [
    h("p", { class: "price" }, shownAmount(amountOfOrder(state))),
    h("p", { class: "due" }, OFFER),
    code ? qrCode(code, "QR code of the payment") : null,
    h("p", { class: "open" }, h("a", { class: "button", href: state.taler_pay_uri }, "Open the wallet on this device")),
  ];
};

const links = (state, cancel) => {
  const isUnpaid = state.order_status === "unpaid";
  return [
    isUnpaid ? copied("pay-uri", "Link for the wallet", state.taler_pay_uri) : null,
    copied("status-url", "The order's page for the customer", state.order_status_url),
    isUnpaid ? sure({ id: "cancel-order", text: "Cancel the order", question: "Really cancel?", work: cancel }) : null,
  ];
};

// --- What was agreed -----------------------------------------------------------------------------------------------

const product = ({ description, product_id: id, quantity, unit, price }) => h("li", {},
  h("span", {}, [quantity === undefined ? "" : quantity + (unit ? " " + unit : " ×"), description || id].filter(Boolean).join(" ")),
  price ? h("span", { class: "sum" }, shownAmount(price)) : null);

const terms = (id, state) => {
  const contract = state.contract_terms;
  if (!contract) return facts([["Order", id], ["Created", time(state.creation_time)], ["Amount", shownAmount(state.total_amount)]]);
  const canRefund = contract.refund_deadline.t_s === "never" || contract.refund_deadline.t_s > contract.timestamp.t_s;
  return facts([
    ["Order", id],
    ["Amount", shownAmount(contract.amount)],
    ["Created", time(contract.timestamp)],
    ["To be paid until", state.order_status === "paid" ? null : time(contract.pay_deadline)],
    ["Received after fees", state.deposit_total && shownAmount(state.deposit_total)],
    ["Refunds until", canRefund ? time(contract.refund_deadline) : "no refunds"],
    ["Transfer to your bank by", time(contract.wire_transfer_deadline)],
    ["After the payment", contract.fulfillment_url ? outside(contract.fulfillment_url) : contract.fulfillment_message],
    ["Minimum age", contract.minimum_age],
  ]);
};

const agreed = (id, state) => {
  const contract = state.contract_terms;
  const products = contract && contract.products && contract.products.length ? contract.products : null;
  return h("section", { id: "terms", "aria-labelledby": "terms-title" },
    h("h3", { id: "terms-title" }, "Order"),
    terms(id, state),
    products ? [h("h4", {}, "Products"), h("ul", { class: "lines" }, products.map(product))] : null,
    contract ? h("details", {}, h("summary", {}, "Contract"), h("pre", { tabindex: "0", "aria-label": "Contract" }, JSON.stringify(contract, null, 2))) : null);
};

// --- Refunds -------------------------------------------------------------------------------------------------------

const refundLine = ({ amount, reason, timestamp, pending }) => h("li", {},
  h("span", { class: "what" }, reason || "(no reason)", h("span", { class: "note" }, time(timestamp))),
  h("span", { class: "sum" }, shownAmount(amount), " ", pending ? badge("waiting", "Not taken") : badge("good", "Taken")));

const refundForm = (left, refund) => {
  const form = h("form", { id: "refund", novalidate: true },
    field({
      id: "refund-amount", name: "amount", label: "Amount in " + currencyName(), inputmode: "decimal", required: true,
      hint: "Up to " + money(left) + ".", value: plain(left),
    }),
    field({ id: "refund-reason", name: "reason", label: "Reason", hint: "Your customer can read it.", maxlength: "500", required: true }),
    h("button", { type: "submit" }, "Refund"));
  form.addEventListener("submit", doing(async () => {
    const units = typed(form.elements.amount.value);
    if (!check(form, [
      ["amount", some, "Enter an amount."],
      ["amount", () => units !== null && units > 0n, "Enter an amount such as 12.50."],
      ["amount", () => units <= left, "This is more than what is left of the payment."],
      ["reason", some, "Enter a reason."],
    ])) return;
    await refund(units, form.elements.reason.value.trim());
  }, form));
  return form;
};

const refundsOf = (state, offer, refund) => {
  const contract = state.contract_terms;
  const approved = unitsOf(state.refund_amount);
  const left = unitsOf(contract.amount) - approved;
  const isOver = isPast(contract.refund_deadline) || contract.refund_deadline.t_s <= contract.timestamp.t_s;
  if (approved === 0n && (isOver || left === 0n)) return null;
  return h("section", { id: "refunds", "aria-labelledby": "refunds-title" },
    h("h3", { id: "refunds-title", tabindex: "-1" }, "Refunds"),
    approved > 0n ? h("p", {}, "Refunded: ", h("strong", {}, money(approved))) : null,
    state.refund_details.length ? h("ul", { class: "lines", id: "refund-lines" }, state.refund_details.map(refundLine)) : null,
    offer ? h("div", { id: "refund-offer" },
      h("p", { class: "due" }, "Let your customer scan this code with the wallet that paid. The order's page shows it, too."),
      qrCode(offer.code, "QR code of the refund"),
      copied("refund-uri", "Link for the wallet", offer.uri)) : null,
    isOver ? h("p", { class: "note" }, "The time for refunds is over.") : left > 0n ? refundForm(left, refund) : null);
};

// --- Transfers -----------------------------------------------------------------------------------------------------

const transfersOf = (state) => {
  if (!state.wire_details.length && !state.wire_reports.length) return null;
  return h("section", { id: "order-transfers", "aria-labelledby": "order-transfers-title" },
    h("h3", { id: "order-transfers-title" }, "Transfers to your bank"),
    h("ul", { class: "lines" }, state.wire_details.map((one) => h("li", {},
      h("span", { class: "what" }, one.exchange_url, h("span", { class: "note" }, one.wtid + " · " + time(one.execution_time))),
      h("span", { class: "sum" }, shownAmount(one.amount), " ", one.confirmed ? badge("good", "Arrived") : badge("waiting", "Announced"))))),
    state.wire_reports.map((one) => h("p", { class: "error" }, one.hint)));
};

// --- The view ------------------------------------------------------------------------------------------------------

export const order = async (place, { param: id, signal }) => {
  const path = "private/orders/" + encodeURIComponent(id);
  let state = await get(path, { signal });
  // The link of a refund that was approved or looked at here, and its code.
  let offer = null;
  const pay = h("section", { id: "payment", class: "payment", role: "status", "aria-label": "Payment" });
  const rest = h("div", { class: "columns" });
  const heading = title(summaryOf(state));
  const mark = h("span", { id: "state" });

  const offerOf = async (units, reason) => {
    const { taler_refund_uri: uri } = await ask("POST", path + "/refund", { refund: amountOf(units), reason }, { signal });
    return { uri, code: await qrOf(uri, { signal }) };
  };
  // `refund` names the new total, so that a request that is repeated refunds nothing more.
  const refund = async (units, reason) => {
    const total = unitsOf(state.refund_amount) + units;
    offer = await offerOf(total, reason);
    state = await get(path, { signal });
    draw();
    say("Refunded " + money(units) + ". Your customer's wallet has to take it.");
    rest.querySelector("#refunds-title").focus({ preventScroll: true });
  };
  // Only an order that no wallet has.
  const cancel = async () => {
    await ask("DELETE", path + "?force=yes", undefined, { signal });
    location.hash = "#/orders";
  };
  let drawnPayment = "";
  const draw = (code = null) => {
    // What did not change is not announced again.
    const paymentNow = state.order_status;
    if (paymentNow !== drawnPayment) {
      drawnPayment = paymentNow;
      pay.className = "payment " + paymentNow;
      pay.replaceChildren(...payment(id, state, code).filter(Boolean));
    }
    mark.replaceChildren(badgeOf(state));
    const isPaid = paymentNow === "paid";
    rest.replaceChildren(
      h("div", { class: "column" },
        isPaid ? refundsOf(state, offer, refund) : null,
        h("section", { "aria-labelledby": "links-title" }, h("h3", { id: "links-title" }, "Links"), links(state, cancel))),
      h("div", { class: "column" }, agreed(id, state), isPaid ? transfersOf(state) : null));
  };
  // A refund that waits for its wallet: its code again. The same total changes nothing. After the deadline there is none.
  const restore = async () => {
    if (!state.refund_pending) return;
    const latest = state.refund_details[state.refund_details.length - 1];
    offer = await offerOf(unitsOf(state.refund_amount), latest ? latest.reason : "").catch(() => null);
  };

  const code = state.order_status === "unpaid" ? await qrOf(state.taler_pay_uri, { signal }).catch(() => null) : null;
  if (state.order_status === "paid") await restore();
  draw(code);
  place.append(
    h("p", { class: "back" }, h("a", { href: "#/orders" }, "← All orders")),
    h("div", { class: "head" }, heading, mark), pay, rest);
  if (state.order_status === "paid" && !state.wired && isPast(state.contract_terms.wire_transfer_deadline)) track();
  watch();

  // Asks the exchanges for transfers, which may take a while.
  async function track() {
    const next = await get(path + "?transfer=YES", { signal }).catch(() => null);
    if (!next || signal.aborted) return;
    const isNew = JSON.stringify([next.wire_details, next.wire_reports]) !== JSON.stringify([state.wire_details, state.wire_reports]);
    state = next;
    if (isNew) draw();
  }

  // Waits for the payment, then for refunds to be taken, as long as the view is shown.
  async function watch() {
    while (!signal.aborted) {
      try {
        if (state.order_status !== "paid") {
          const next = await get(path + query({ timeout_ms: POLL_MS }), { signal });
          const isNew = next.order_status !== state.order_status;
          state = next;
          if (isNew) draw();
        } else if (state.refund_pending) {
          const { search } = new URL(state.order_status_url);
          const wait = (search ? search + "&" : "?") + "await_refund_obtained=yes&timeout_ms=" + REFUND_POLL_MS;
          await get("orders/" + encodeURIComponent(id) + wait, { signal, as: null });
          const next = await get(path, { signal });
          const isNew = JSON.stringify(next.refund_details) !== JSON.stringify(state.refund_details);
          state = next;
          if (!state.refund_pending) offer = null;
          // A form that somebody fills in stays as it is, unless the refund was taken.
          if (isNew) draw();
        } else {
          await pause(RETRY_MS);
        }
      } catch (error) {
        if (error.status === 401 || error.status === 404) return;
        if (!signal.aborted) await pause(RETRY_MS);
      }
    }
  }
};
