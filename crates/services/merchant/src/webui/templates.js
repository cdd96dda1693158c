// Templates of orders: a printed code with which customers order by themselves.

import { ask, get, qrOf } from "./api.js";
import { copied, h, qrCode, say, title } from "./dom.js";
import { check, doing, field, some, sure } from "./forms.js";
import { amountOf, currencyName, duration, HOUR_S, plain, secondsOf, typed, unitsOf } from "./money.js";

const pathOf = (id) => "private/templates/" + encodeURIComponent(id);

// The page for customers, relative to this one's own address.
const pageOf = (id) => new URL("../templates/" + encodeURIComponent(id), location.href).href;

const row = (one) => h("li", {},
  h("span", { class: "what" },
    h("a", { href: "#/template/" + encodeURIComponent(one.template_id) }, one.template_description || one.template_id),
    h("span", { class: "note" }, one.template_id)));

export const templates = async (place, { signal }) => {
  const { templates: list } = await get("private/templates", { signal });
  place.append(
    h("div", { class: "head" }, title("Templates"), h("a", { class: "button", href: "#/template" }, "Add template")),
    h("section", {},
      h("p", { class: "hint" }, "A customer scans the code of a template, and gets an order of it. Print it for what you sell often, or for donations."),
      list.length ? h("ul", { class: "lines", id: "templates" }, list.map(row)) : h("p", { class: "note", id: "nothing" }, "No templates yet.")));
};

const hoursOf = (details) => {
  if (!details) return "24";
  const seconds = secondsOf(details.template_contract.pay_duration);
  return seconds === null ? "" : String(Math.round((seconds / HOUR_S) * 100) / 100);
};

const templateForm = (details) => {
  const contract = details ? details.template_contract : {};
  return h("form", { id: "template-form", novalidate: true },
    details ? null : field({ id: "template-id", name: "template_id", label: "Template id", hint: "Part of the code's link. It cannot be changed.", maxlength: "64", spellcheck: "false", required: true }),
    field({ id: "template-description", name: "description", label: "Description", hint: "Only you see it.", maxlength: "200", value: details && details.template_description, required: true }),
    field({ id: "template-summary", name: "summary", label: "Summary of the orders", optional: true, hint: "Empty: the customer writes it.", maxlength: "500", value: contract.summary }),
    field({ id: "template-amount", name: "amount", label: "Amount in " + currencyName(), optional: true, hint: "Empty: the customer chooses it.", inputmode: "decimal", value: contract.amount && plain(unitsOf(contract.amount)) }),
    field({ id: "template-hours", name: "hours", label: "Hours until an order must be paid", hint: "Empty: it can be paid for ever.", inputmode: "decimal", value: hoursOf(details) }),
    field({ id: "template-age", name: "age", label: "Minimum age of the customer", optional: true, inputmode: "numeric", value: contract.minimum_age || "" }),
    h("button", { type: "submit" }, details ? "Save" : "Add template"));
};

const RULES = [
  ["description", some, "Enter what it is for."],
  ["amount", (text) => !text.trim() || typed(text) !== null, "Enter an amount such as 12.50."],
  ["hours", (text) => !text.trim() || /^\d{1,6}([.,]\d{1,4})?$/.test(text.trim()), "Enter a number of hours."],
  ["age", (text) => !text.trim() || (/^\d{1,3}$/.test(text.trim()) && Number(text) <= 100), "Enter an age in years."],
];

const wishOf = ({ description, summary, amount, hours, age }) => {
  const contract = { minimum_age: Number(age.value.trim() || 0) };
  contract.pay_duration = hours.value.trim() ? duration(Math.round(Number(hours.value.replace(",", ".")) * HOUR_S)) : { d_us: "forever" };
  if (summary.value.trim()) contract.summary = summary.value.trim();
  if (amount.value.trim()) contract.amount = amountOf(typed(amount.value));
  return { template_description: description.value.trim(), template_contract: contract };
};

export const template = async (place, { param: id, signal, reload }) => {
  const details = id ? await get(pathOf(id), { signal }) : null;
  const form = templateForm(details);
  form.addEventListener("submit", doing(async () => {
    const rules = details ? RULES : [["template_id", (text) => /^[A-Za-z0-9\-._~:@+]{1,64}$/.test(text.trim()), "Use letters, digits and - . _ ~ : @ + only."], ...RULES];
    if (!check(form, rules)) return;
    const wish = wishOf(form.elements);
    if (details) {
      await ask("PATCH", pathOf(id), wish, { signal });
      await reload();
      say("Saved.");
    } else {
      const template_id = form.elements.template_id.value.trim();
      await ask("POST", "private/templates", { template_id, ...wish }, { signal });
      location.hash = "#/template/" + encodeURIComponent(template_id);
    }
  }, form));
  const remove = async () => {
    await ask("DELETE", pathOf(id), undefined, { signal });
    location.hash = "#/templates";
  };
  const code = details ? h("section", { "aria-labelledby": "code-title" },
    h("h3", { id: "code-title" }, "Code for customers"),
    qrCode(await qrOf(pageOf(id), { signal }), "QR code of the template"),
    copied("template-link", "Link", pageOf(id)),
    h("div", { class: "row" },
      h("button", { type: "button", class: "quiet", click: () => print() }, "Print"),
      sure({ id: "delete-template", text: "Delete", about: "this template", question: "Really delete?", work: remove }))) : null;
  const name = details ? details.template_description || id : "New template";
  place.append(
    h("p", { class: "back" }, h("a", { href: "#/templates" }, "← All templates")),
    h("div", { class: "head" }, title(name)),
    h("div", { class: "columns" }, ...[code, h("section", {}, details ? h("h3", {}, "Change") : "", form)].filter(Boolean)));
};
