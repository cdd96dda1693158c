// A new order: what it costs and what for; then its view with the code for the customer.

import { ask } from "./api.js";
import { $, h, title } from "./dom.js";
import { check, doing, field, some } from "./forms.js";
import { amountOf, currencyName, DAY_S, duration, typed } from "./money.js";

const REFUND_DAYS = [["0", "No refunds"], ["1", "1 day"], ["7", "7 days"], ["14", "14 days"], ["30", "30 days"], ["90", "90 days"]];
const FULFILLMENT = [["", "Nothing"], ["message", "A message"], ["url", "A web page"]];

const isWebUrl = (text) => /^https?:\/\/./i.test(text) && URL.canParse(text.replace("${ORDER_ID}", "1"));

export const newOrder = async (place, { signal }) => {
  const target = h("div", { id: "order-target" });
  const form = h("form", { id: "new-order", novalidate: true },
    field({ id: "order-amount", name: "amount", label: "Amount in " + currencyName(), inputmode: "decimal", required: true }),
    field({ id: "order-summary", name: "summary", label: "Summary", hint: "One line that your customer sees in the wallet.", maxlength: "500", required: true }),
    field({ id: "order-refund", name: "refund", label: "Refunds possible for", options: REFUND_DAYS, value: "14", hint: "The exchange pays your bank account after that time." }),
    field({ id: "order-fulfillment", name: "fulfillment", label: "After the payment the wallet shows", options: FULFILLMENT, value: "" }),
    target,
    field({ id: "order-id", name: "order_id", label: "Order id", optional: true, hint: "Such as the number of your invoice. Without one, the backend chooses it.", maxlength: "64", spellcheck: "false" }),
    h("button", { type: "submit" }, "Create order"));

  form.elements.fulfillment.addEventListener("change", ({ target: { value } }) => {
    const fields = {
      message: () => field({ id: "order-message", name: "message", label: "Message", rows: 3, maxlength: "2000", required: true }),
      url: () => field({ id: "order-url", name: "url", label: "Address of the page", type: "url", hint: "${ORDER_ID} in it becomes the id of the order.", required: true }),
    };
    target.replaceChildren(...(fields[value] ? [fields[value]()] : []));
  });

  form.addEventListener("submit", doing(async () => {
    const { amount, summary, refund, fulfillment, order_id: id } = form.elements;
    const units = typed(amount.value);
    const rules = [
      ["amount", some, "Enter an amount."],
      ["amount", () => units !== null, "Enter an amount such as 12.50."],
      ["summary", some, "Enter what the customer pays for."],
      ["order_id", (text) => /^[A-Za-z0-9\-._~:@+]*$/.test(text.trim()), "Use letters, digits and - . _ ~ : @ + only."],
    ];
    if (fulfillment.value === "message") rules.push(["message", some, "Enter the message."]);
    if (fulfillment.value === "url") rules.push(["url", (text) => isWebUrl(text.trim()), "Enter an address such as https://shop.example/thanks."]);
    if (!check(form, rules)) return;
    const order = { amount: amountOf(units), summary: summary.value.trim() };
    if (fulfillment.value === "message") order.fulfillment_message = $("order-message").value.trim();
    if (fulfillment.value === "url") order.fulfillment_url = $("order-url").value.trim();
    if (id.value.trim()) order.order_id = id.value.trim();
    const wish = { order };
    if (Number(refund.value) > 0) wish.refund_delay = duration(Number(refund.value) * DAY_S);
    const made = await ask("POST", "private/orders", wish, { signal });
    location.hash = "#/order/" + encodeURIComponent(made.order_id);
  }, form));

  place.append(title("New order"), h("section", { class: "single" }, form));
};
