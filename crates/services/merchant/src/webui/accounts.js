// The bank accounts to which exchanges pay.

import { ask, get } from "./api.js";
import { badge, h, outside, say, title } from "./dom.js";
import { check, doing, field, some } from "./forms.js";
import { settingsOf } from "./settings.js";

// A payto:// address as people read it.
const shownAccount = (uri) => {
  const [path, search = ""] = uri.replace(/^payto:\/\//, "").split("?");
  const [method, ...parts] = path.split("/");
  const name = new URLSearchParams(search).get("receiver-name");
  return { method, number: decodeURIComponent(parts[parts.length - 1] || ""), name };
};

const KINDS = { iban: "IBAN", "x-taler-bank": "Account" };

// What exchanges want to know about the owners. The page works without it.
const identification = async (signal) => {
  const open = await get("private/kyc", { signal }).catch(() => null);
  if (!open) return null;
  return h("section", { id: "kyc", "aria-labelledby": "kyc-title" },
    h("h3", { id: "kyc-title" }, "Identification"),
    open.pending_kycs.length ? h("p", {}, "An exchange does not transfer your money before it knows who owns the account.") : null,
    h("ul", { class: "lines" }, open.pending_kycs.map((one) => h("li", {},
      h("span", { class: "what" }, one.payto_uri, h("span", { class: "note" }, one.exchange_url)),
      outside(one.kyc_url, "Identify yourself")))),
    open.timeout_kycs.map((one) => h("p", { class: "note" }, "No answer from " + one.exchange_url)));
};

export const accounts = async (place, { signal, reload }) => {
  const [details, kyc] = await Promise.all([get("private", { signal }), identification(signal)]);
  const active = details.accounts.filter((one) => one.active).map((one) => one.payto_uri);
  const change = async (uris, text) => {
    await ask("PATCH", "private", { ...settingsOf(details), payto_uris: uris }, { signal });
    dispatchEvent(new Event("shop-changed"));
    await reload();
    say(text);
  };
  const line = (account) => {
    const { method, number, name } = shownAccount(account.payto_uri);
    const others = active.filter((uri) => uri !== account.payto_uri);
    const button = account.active
      ? h("button", { type: "button", class: "quiet", click: doing(() => change(others, "New orders do not use the account any more.")) }, "Do not use")
      : h("button", { type: "button", class: "quiet", click: doing(() => change([...active, account.payto_uri], "New orders can use the account again.")) }, "Use again");
    return h("li", {},
      h("span", { class: "what" }, h("strong", {}, (KINDS[method] || method) + " " + number), name ? h("span", { class: "note" }, name) : null, h("span", { class: "note" }, account.payto_uri)),
      h("span", { class: "side" }, account.active ? badge("good", "In use") : badge("waiting", "Not used"), button));
  };
  const form = h("form", { id: "add-account", novalidate: true },
    field({ id: "account-payto", name: "payto", label: "Address of the account", spellcheck: "false", required: true, hint: "Such as payto://iban/CH9300762011623852957?receiver-name=Books" }),
    h("button", { type: "submit" }, "Add account"));
  form.addEventListener("submit", doing(async () => {
    const uri = form.elements.payto.value.trim();
    if (!check(form, [
      ["payto", some, "Enter the address of the account."],
      ["payto", (text) => text.trim().startsWith("payto://"), "It begins with payto://."],
      ["payto", () => !active.includes(uri), "This account is in the list."],
    ])) return;
    await change([...active, uri], "New orders can use the account.");
  }, form));
  place.append(title("Bank accounts"), h("div", { class: "columns" }, kyc || "",
    h("section", {},
      h("p", { class: "hint" }, "Exchanges transfer what your customers paid to an account in use."),
      details.accounts.length ? h("ul", { class: "lines", id: "account-lines" }, details.accounts.map(line)) : h("p", { class: "note" }, "No account yet.")),
    h("section", { "aria-labelledby": "add-title" }, h("h3", { id: "add-title" }, "Add an account"), form)));
};
