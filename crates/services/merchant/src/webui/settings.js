// What the shop tells its customers, its defaults for orders, and its access token.

import { ask, completeToken, get, keepToken, pageInstance, useToken } from "./api.js";
import { facts, h, say, title } from "./dom.js";
import { check, doing, field, some } from "./forms.js";
import { amountOf, DAY_S, duration, HOUR_S, plain, secondsOf, typed, unitsOf } from "./money.js";

const TOKEN_BYTES = 32;

const ADDRESS = [
  ["street", "Street"], ["building_number", "House number"], ["post_code", "Post code"], ["town", "Town"],
  ["country_subdivision", "Region"], ["country", "Country"],
];

// The members of a change that keeps everything.
export const settingsOf = (details) => {
  const kept = { ...details, payto_uris: details.accounts.filter((one) => one.active).map((one) => one.payto_uri) };
  delete kept.accounts;
  delete kept.merchant_pub;
  delete kept.auth;
  return kept;
};

// A number of hours or days, or nothing for a time without end.
const delayText = (delay, unit) => {
  const seconds = secondsOf(delay);
  return seconds === null ? "" : String(Math.round((seconds / unit) * 100) / 100);
};
const delayOf = (text, unit, before) => {
  if (text.trim() === "") return { d_us: "forever" };
  // A time that is not shown exactly stays as it was, if nobody changed it.
  return text === delayText(before, unit) ? before : duration(Math.round(Number(text.replace(",", ".")) * unit));
};
const isDelay = (text) => text.trim() === "" || (/^\d+([.,]\d+)?$/.test(text.trim()) && Number(text.replace(",", ".")) < 100_000);

const shopForm = (details, save) => {
  const { address } = details;
  const form = h("form", { id: "shop-form", novalidate: true },
    field({ id: "shop-name", name: "name", label: "Name", hint: "Your customers see it in their wallets.", value: details.name, maxlength: "200", required: true }),
    field({ id: "shop-email", name: "email", label: "E-mail address", optional: true, type: "email", value: details.email }),
    field({ id: "shop-website", name: "website", label: "Web site", optional: true, type: "url", value: details.website }),
    h("fieldset", {}, h("legend", {}, "Address"), h("div", { class: "grid" }, ADDRESS.map(([key, label]) =>
      field({ id: "shop-" + key, name: key, label, value: address[key], maxlength: "200" })))),
    h("button", { type: "submit" }, "Save"));
  form.addEventListener("submit", doing(async () => {
    if (!check(form, [["name", some, "Enter the name of the shop."]])) return;
    const { elements } = form;
    const changed = { ...settingsOf(details), name: elements.name.value.trim(), address: { ...address } };
    for (const key of ["email", "website"]) {
      const text = elements[key].value.trim();
      if (text) changed[key] = text; else delete changed[key];
    }
    for (const [key] of ADDRESS) {
      const text = elements[key].value.trim();
      if (text) changed.address[key] = text; else delete changed.address[key];
    }
    await save(changed);
  }, form));
  return form;
};

const defaultsForm = (details, save) => {
  const amount = (id, name, label, hint) => field({ id, name, label, hint, inputmode: "decimal", value: plain(unitsOf(details[name])), required: true });
  const form = h("form", { id: "defaults-form", novalidate: true },
    field({ id: "pay-delay", name: "pay", label: "Hours until an order must be paid", hint: "Empty: it can be paid for ever.", inputmode: "decimal", value: delayText(details.default_pay_delay, HOUR_S) }),
    field({ id: "wire-delay", name: "wire", label: "Days until the exchange transfers the money", hint: "Fewer transfers cost less. Refunds are possible only before the transfer.", inputmode: "decimal", value: delayText(details.default_wire_transfer_delay, DAY_S), required: true }),
    amount("max-deposit-fee", "default_max_deposit_fee", "Deposit fees that you pay, up to", "Your customer pays what is above."),
    amount("max-wire-fee", "default_max_wire_fee", "Wire fee that you pay, up to", "Your customers pay what is above."),
    field({ id: "amortization", name: "amortization", label: "Orders that share what is above", inputmode: "numeric", value: details.default_wire_fee_amortization, required: true }),
    h("button", { type: "submit" }, "Save"));
  form.addEventListener("submit", doing(async () => {
    const { elements } = form;
    const isAmount = (text) => typed(text) !== null;
    if (!check(form, [
      ["pay", isDelay, "Enter a number of hours."],
      ["wire", (text) => some(text) && isDelay(text), "Enter a number of days."],
      ["default_max_deposit_fee", isAmount, "Enter an amount such as 0.10."],
      ["default_max_wire_fee", isAmount, "Enter an amount such as 0.10."],
      ["amortization", (text) => /^[1-9]\d{0,8}$/.test(text.trim()), "Enter a whole number, at least 1."],
    ])) return;
    await save({
      ...settingsOf(details),
      default_pay_delay: delayOf(elements.pay.value, HOUR_S, details.default_pay_delay),
      default_wire_transfer_delay: delayOf(elements.wire.value, DAY_S, details.default_wire_transfer_delay),
      default_max_deposit_fee: amountOf(typed(elements.default_max_deposit_fee.value)),
      default_max_wire_fee: amountOf(typed(elements.default_max_wire_fee.value)),
      default_wire_fee_amortization: Number(elements.amortization.value),
    });
  }, form));
  return form;
};

const randomToken = () => {
  const bytes = crypto.getRandomValues(new Uint8Array(TOKEN_BYTES));
  return completeToken([...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join(""));
};

const tokenForm = (reload, signal) => {
  const token = field({ id: "new-token", name: "token", label: "New access token", spellcheck: "false", required: true, hint: "At least 8 characters after secret-token:, which you may leave out. Keep it like a key: it is not shown again." });
  const form = h("form", { id: "token-form", novalidate: true }, token,
    h("div", { class: "row" },
      h("button", { type: "submit" }, "Change the token"),
      h("button", { type: "button", class: "quiet", id: "make-token", click: () => { form.elements.token.value = randomToken(); } }, "Make one up")));
  form.addEventListener("submit", doing(async () => {
    if (!check(form, [
      ["token", some, "Enter the new token."],
      ["token", (text) => /^secret-token:[\x21-\x7e]{8,200}$/.test(completeToken(text)), "Use 8 to 200 letters, digits and signs without spaces."],
    ])) return;
    const text = completeToken(form.elements.token.value);
    await ask("POST", "private/auth", { method: "token", token: text }, { signal });
    useToken(text);
    keepToken(pageInstance, text);
    dispatchEvent(new Event("shop-changed"));
    await reload();
    say("The access token is changed. Programs with the old one have no access any more.");
  }, form));
  return form;
};

export const settings = async (place, { signal, reload }) => {
  const details = await get("private", { signal });
  const save = async (changed) => {
    await ask("PATCH", "private", changed, { signal });
    dispatchEvent(new Event("shop-changed"));
    await reload();
    say("Saved.");
  };
  const isExternal = details.auth.method === "external";
  const section = (id, name, ...contents) => h("section", { "aria-labelledby": id }, h("h3", { id }, name), contents);
  place.append(title("Settings"), h("div", { class: "columns" },
    section("shop-title", "Shop", shopForm(details, save)),
    section("defaults-title", "Defaults for new orders", defaultsForm(details, save)),
    section("token-title", "Access",
      isExternal ? h("p", { class: "hint" }, "The backend itself checks no access: a proxy has to. With a token it does.") : null,
      tokenForm(reload, signal)),
    section("key-title", "About this shop", facts([["Id", pageInstance], ["Public key", details.merchant_pub]]))));
};
