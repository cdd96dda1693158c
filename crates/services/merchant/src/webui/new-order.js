// A new order: what it costs and what for; then its view with the code for the customer.

import { ask, Problem } from "./api.js";
import { $, h, title, unseen } from "./dom.js";
import { check, doing, field, some } from "./forms.js";
import { amountOf, currencyName, DAY_S, duration, money, plain, time, typed, unitsOf } from "./money.js";
import { product, productIds, unitsLeft } from "./products.js";

const REFUND_DAYS = [["0", "No refunds"], ["1", "1 day"], ["7", "7 days"], ["14", "14 days"], ["30", "30 days"], ["90", "90 days"]];
const FULFILLMENT = [["", "Nothing"], ["message", "A message"], ["url", "A web page"]];

const isWebUrl = (text) => /^https?:\/\/./i.test(text) && URL.canParse(text.replace("${ORDER_ID}", "1"));

// What the stock lacks, as a sentence.
const lackOf = ({ product_id: id, available_quantity: count, restock_expected: restock }) => {
  const more = restock && typeof restock.t_s === "number" && restock.t_s > 0 ? " More comes on " + time(restock) + "." : "";
  return (count > 0 ? "Only " + count + " of " + id + " are left." : id + " is sold out.") + more;
};

// The part of the form with products of the stock. `changed` gets the sum of their prices.
const basket = (ids, signal, changed) => {
  const chosen = new Map();
  const lines = h("ul", { class: "lines", id: "basket" });
  const draw = () => {
    lines.replaceChildren(...[...chosen].map(([id, { details, quantity }]) => h("li", {},
      h("span", { class: "what" }, quantity + " × " + details.description, h("span", { class: "note" }, id)),
      h("span", { class: "side" },
        h("span", { class: "sum" }, money(unitsOf(details.price) * BigInt(quantity))),
        h("button", { type: "button", class: "quiet", click: () => { chosen.delete(id); draw(); } }, "Remove", unseen(" " + details.description))))));
    changed([...chosen.values()].reduce((sum, { details, quantity }) => sum + unitsOf(details.price) * BigInt(quantity), 0n), chosen);
  };
  const form = h("form", { id: "add-product", class: "basket", novalidate: true },
    field({ id: "basket-product", name: "product", label: "Product", list: "basket-ids", spellcheck: "false", required: true }),
    h("datalist", { id: "basket-ids" }, ids.map((id) => h("option", { value: id }))),
    field({ id: "basket-quantity", name: "quantity", label: "Quantity", inputmode: "numeric", value: "1", required: true }),
    h("button", { type: "submit", class: "quiet" }, "Add product"));
  form.addEventListener("submit", doing(async () => {
    if (!check(form, [
      ["product", some, "Enter the id of a product."],
      ["quantity", (text) => /^[1-9]\d{0,5}$/.test(text.trim()), "Enter a whole number, at least 1."],
    ])) return;
    const id = form.elements.product.value.trim();
    const details = await product(id, signal).catch((error) => {
      throw error.status === 404 ? new Problem("There is no such product.", { field: "product" }) : error;
    });
    const quantity = Number(form.elements.quantity.value) + (chosen.has(id) ? chosen.get(id).quantity : 0);
    const left = unitsLeft(details);
    if (left !== null && quantity > left) {
      throw new Problem(lackOf({ product_id: id, available_quantity: left, restock_expected: details.next_restock }), { field: "quantity" });
    }
    chosen.set(id, { details, quantity });
    form.reset();
    form.elements.quantity.value = "1";
    draw();
    form.elements.product.focus();
  }, form));
  return {
    section: h("section", { class: "single", "aria-labelledby": "basket-title" }, h("h3", { id: "basket-title" }, "Products from your stock"), lines, form),
    wishes: () => [...chosen].map(([id, { quantity }]) => ({ product_id: id, quantity })),
  };
};

export const newOrder = async (place, { signal }) => {
  const ids = await productIds(signal);
  const target = h("div", { id: "order-target" });
  const form = h("form", { id: "new-order", novalidate: true },
    field({ id: "order-amount", name: "amount", label: "Amount in " + currencyName(), inputmode: "decimal", required: true }),
    field({ id: "order-summary", name: "summary", label: "Summary", hint: "One line that your customer sees in the wallet.", maxlength: "500", required: true }),
    field({ id: "order-refund", name: "refund", label: "Refunds possible for", options: REFUND_DAYS, value: "14", hint: "The exchange pays your bank account after that time." }),
    field({ id: "order-fulfillment", name: "fulfillment", label: "After the payment the wallet shows", options: FULFILLMENT, value: "" }),
    target,
    field({ id: "order-id", name: "order_id", label: "Order id", optional: true, hint: "Such as the number of your invoice. Without one, the backend chooses it.", maxlength: "64", spellcheck: "false" }),
    h("button", { type: "submit" }, "Create order"));

  // Until somebody types an amount, it is the price of the products, and their names are the summary.
  const { amount: amountField, summary: summaryField } = form.elements;
  const typedBy = new Set();
  for (const input of [amountField, summaryField]) input.addEventListener("input", () => typedBy.add(input));
  const stock = ids.length ? basket(ids, signal, (sum, chosen) => {
    const names = [...chosen.values()].map(({ details, quantity }) => (quantity > 1 ? quantity + " × " : "") + details.description);
    if (!typedBy.has(amountField)) amountField.value = chosen.size ? plain(sum) : "";
    if (!typedBy.has(summaryField)) summaryField.value = names.join(", ").slice(0, 200);
  }) : null;

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
    const products = stock ? stock.wishes() : [];
    if (products.length) wish.inventory_products = products;
    const made = await ask("POST", "private/orders", wish, { signal }).catch((error) => {
      throw error.status === 410 ? new Problem(lackOf(error.body)) : error;
    });
    location.hash = "#/order/" + encodeURIComponent(made.order_id);
  }, form));

  place.append(title("New order"), stock ? stock.section : "", h("section", { class: "single" }, form));
};
