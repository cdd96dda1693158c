// What connects the shop with its own programs: further access tokens, and web hooks.

import { ask, get } from "./api.js";
import { badge, copied, h, say, title } from "./dom.js";
import { check, doing, field, some, sure } from "./forms.js";
import { DAY_S, duration, isPast, time } from "./money.js";

const SCOPES = [["orders", "Read, create orders, approve refunds"], ["readonly", "Read only"], ["all", "Everything"]];
const DAYS = [["30", "30 days"], ["90", "90 days"], ["365", "A year"], ["", "No end"]];
const EVENTS = [["pay", "An order is paid"], ["refund", "A refund is approved"]];
const METHODS = ["POST", "PUT", "PATCH", "GET", "DELETE"].map((one) => [one, one]);
const nameOf = (choices, key) => (choices.find(([one]) => one === key) || [key, key])[1];

const BODY = '{ "order": "{{ order_id }}", "event": "{{ webhook_type }}" }';

const tokenLine = (one, remove) => h("li", {},
  h("span", { class: "what" }, h("strong", {}, one.description || "(no description)"),
    h("span", { class: "note" }, nameOf(SCOPES, one.scope) + " · created " + time(one.creation_time) + " · ends " + time(one.expiration))),
  h("span", { class: "side" }, isPast(one.expiration) ? badge("waiting", "Ended") : badge("good", "Valid"),
    sure({ text: "Revoke", about: one.description, question: "Really revoke?", work: () => remove(one) })));

const tokens = (list, { signal, reload }) => {
  const made = h("div", { id: "made-token" });
  const form = h("form", { id: "add-token", novalidate: true },
    field({ id: "token-description", name: "description", label: "What it is for", maxlength: "100", required: true }),
    field({ id: "token-scope", name: "scope", label: "What it allows", options: SCOPES, value: "orders" }),
    field({ id: "token-days", name: "days", label: "How long it is valid", options: DAYS, value: "365" }),
    h("button", { type: "submit" }, "Create token"));
  form.addEventListener("submit", doing(async () => {
    const { description, scope, days } = form.elements;
    if (!check(form, [["description", some, "Enter which program gets it."]])) return;
    const wish = { description: description.value.trim(), scope: scope.value, duration: days.value ? duration(Number(days.value) * DAY_S) : { d_us: "forever" } };
    const { token } = await ask("POST", "private/token", wish, { signal });
    await reload();
    const shown = copied("the-token", "The new access token", token);
    document.getElementById("made-token").append(h("p", { class: "hint" }, "Copy it now: it is not shown again."), shown);
    say("The token is created.");
    document.getElementById("the-token").focus();
  }, form));
  const remove = async (one) => {
    await ask("DELETE", "private/tokens/" + one.serial, undefined, { signal });
    await reload();
    say("The token is revoked.");
  };
  return h("section", { "aria-labelledby": "tokens-title" },
    h("h3", { id: "tokens-title" }, "Access tokens"),
    h("p", { class: "hint" }, "Give each program a token of its own, so that you can revoke one without the others."),
    made,
    list.length ? h("ul", { class: "lines", id: "tokens" }, list.map((one) => tokenLine(one, remove))) : h("p", { class: "note" }, "No further tokens."),
    form);
};

const hooks = (list, { signal, reload }) => {
  const remove = async (id) => {
    await ask("DELETE", "private/webhooks/" + encodeURIComponent(id), undefined, { signal });
    await reload();
    say("The web hook is deleted.");
  };
  const line = ({ id, details }) => h("li", {},
    h("span", { class: "what" }, h("strong", {}, nameOf(EVENTS, details.event_type)),
      h("span", { class: "note" }, details.http_method + " " + details.url), h("span", { class: "note" }, id)),
    h("span", { class: "side" }, sure({ text: "Delete", about: "web hook " + id, question: "Really delete?", work: () => remove(id) })));
  const form = h("form", { id: "add-hook", novalidate: true },
    field({ id: "hook-id", name: "id", label: "Web hook id", maxlength: "64", spellcheck: "false", required: true }),
    field({ id: "hook-event", name: "event", label: "When", options: EVENTS }),
    field({ id: "hook-method", name: "method", label: "Method", options: METHODS }),
    field({ id: "hook-url", name: "url", label: "Address of your program", type: "url", required: true }),
    field({ id: "hook-headers", name: "headers", label: "Headers", optional: true, rows: 2, spellcheck: "false", hint: "One on each line, such as X-Key: 1234." }),
    field({ id: "hook-body", name: "body", label: "Body", optional: true, rows: 3, spellcheck: "false", value: BODY, hint: "Names in {{ }} are replaced by values of the order." }),
    h("button", { type: "submit" }, "Add web hook"));
  form.addEventListener("submit", doing(async () => {
    const { id, event, method, url, headers, body } = form.elements;
    const isHeader = (text) => text.split("\n").every((each) => !each.trim() || /^[A-Za-z0-9-]+:/.test(each.trim()));
    if (!check(form, [
      ["id", (text) => /^[A-Za-z0-9\-._~:@+]{1,64}$/.test(text.trim()), "Use letters, digits and - . _ ~ : @ + only."],
      ["url", (text) => /^https?:\/\/./.test(text.trim()), "Enter the address, which begins with https://."],
      ["headers", isHeader, "Each line is a name, a colon and a value."],
    ])) return;
    const wish = { webhook_id: id.value.trim(), event_type: event.value, http_method: method.value, url: url.value.trim() };
    const lines = headers.value.split("\n").map((each) => each.trim()).filter(Boolean);
    if (lines.length) wish.header_template = lines.join("\n");
    if (body.value.trim()) wish.body_template = body.value;
    await ask("POST", "private/webhooks", wish, { signal });
    await reload();
    say("The web hook is added.");
  }, form));
  return h("section", { "aria-labelledby": "hooks-title" },
    h("h3", { id: "hooks-title" }, "Web hooks"),
    h("p", { class: "hint" }, "The backend tells your program when something happens, and repeats that until the program answers."),
    list.length ? h("ul", { class: "lines", id: "hooks" }, list.map(line)) : h("p", { class: "note" }, "No web hooks."),
    form);
};

export const programs = async (place, context) => {
  const { signal } = context;
  const [{ tokens: list }, { webhooks }] = await Promise.all([get("private/tokens", { signal }), get("private/webhooks", { signal })]);
  const details = await Promise.all(webhooks.map(async ({ webhook_id: id }) =>
    ({ id, details: await get("private/webhooks/" + encodeURIComponent(id), { signal }) })));
  place.append(title("Programs"), h("div", { class: "columns" }, tokens(list, context), hooks(details, context)));
};
