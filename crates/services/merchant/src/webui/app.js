// The frame of the page: log in, log out, and which view is shown.

import {
  completeToken, forgetToken, get, keepToken, loadConfig, pageInstance, pageOf, Problem, storedToken, tryToken, useToken,
  whenSessionEnds,
} from "./api.js";
import { accounts } from "./accounts.js";
import { $, h, say, title } from "./dom.js";
import { blame, check, clear, doing, some } from "./forms.js";
import { newOrder } from "./new-order.js";
import { order } from "./order.js";
import { orders } from "./orders.js";
import { oneProduct, products } from "./products.js";
import { programs } from "./programs.js";
import { settings } from "./settings.js";
import { template, templates } from "./templates.js";
import { reserve, tips } from "./tips.js";
import { transfers } from "./transfers.js";

// The views by the first part of the address after the `#`: their name in the navigation, or the view they belong to.
const VIEWS = [
  ["orders", "Orders", orders],
  ["new", "New order", newOrder],
  ["order", { in: "orders" }, order],
  ["products", "Products", products],
  ["product", { in: "products" }, oneProduct],
  ["templates", "Templates", templates],
  ["template", { in: "templates" }, template],
  ["transfers", "Transfers", transfers],
  ["tips", "Tips", tips],
  ["reserve", { in: "tips" }, reserve],
  ["accounts", "Accounts", accounts],
  ["programs", "Programs", programs],
  ["settings", "Settings", settings],
];
const FIRST = "orders";

// What is known of the shop, for all views.
const shop = { details: null };
let running = new AbortController();
let shownKey = "";

const drawNav = ([current, place]) => {
  const shown = place.in || current;
  const link = ([key, name]) => h("a", { href: "#/" + key, "aria-current": key === shown ? "page" : null }, name);
  $("nav").replaceChildren(...VIEWS.filter(([, name]) => !name.in).map(link));
  // On a phone the navigation is wider than the page.
  const here = $("nav").querySelector("[aria-current]");
  if (here) $("nav").scrollLeft = here.offsetLeft - $("nav").offsetLeft - 16;
};

const drawName = () => {
  $("shop").textContent = shop.details ? shop.details.name : "Back office";
  $("shop").append(...(shop.details && pageInstance !== "default" ? [h("span", { class: "id" }, " " + pageInstance)] : []));
};

// Shows the view that the address names. `focus` says whether the keyboard continues there.
const show = async (focus = true) => {
  if (!shop.details) return;
  running.abort();
  running = new AbortController();
  const { signal } = running;
  const [path, search = ""] = location.hash.replace(/^#\//, "").split("?");
  const [key, ...rest] = path.split("/");
  const view = VIEWS.find(([name]) => name === key);
  if (!view) {
    location.replace("#/" + FIRST);
    return;
  }
  drawNav(view);
  const place = h("div", { class: "view" });
  let contents = place;
  try {
    const param = rest.map(decodeURIComponent).join("/");
    await view[2](place, { param, query: new URLSearchParams(search), signal, shop, reload: () => show(false) });
  } catch (error) {
    if (signal.aborted || error.status === 401) return;
    const again = h("button", { type: "button", click: () => show() }, "Try again");
    contents = h("section", {}, title(view[1].in ? "Not found" : view[1]), h("p", { class: "error" }, error.message), h("div", { class: "row" }, again));
  }
  if (signal.aborted) return;
  // A control of the same view keeps the focus, such as a filter.
  const kept = key === shownKey && $("view").contains(document.activeElement) && document.activeElement.id;
  shownKey = key;
  $("view").replaceChildren(contents);
  const heading = contents.querySelector("h2");
  document.title = [heading && heading.textContent, shop.details.name].filter(Boolean).join(" · ");
  if (kept && $(kept)) {
    $(kept).focus({ preventScroll: true });
  } else if (focus && heading) {
    scrollTo(0, 0);
    heading.focus({ preventScroll: true });
  }
};

const enter = async (details) => {
  shop.details = details;
  $("door").hidden = true;
  $("nav").hidden = false;
  $("logout").hidden = details.auth.method !== "token";
  drawName();
  await show();
};

const leave = (text, isBad = false) => {
  running.abort();
  forgetToken();
  shop.details = null;
  $("view").replaceChildren();
  $("nav").hidden = true;
  $("logout").hidden = true;
  $("door").hidden = false;
  $("login").reset();
  clear($("login"));
  $("login-instance").value = pageInstance;
  document.title = "Back office";
  drawName();
  say(text, isBad);
};

$("login").addEventListener("submit", doing(async ({ target }) => {
  if (!check(target, [
    ["instance", some, "Enter the id of the shop."],
    ["token", some, "Enter the access token."],
  ])) return;
  const instance = target.elements.instance.value.trim();
  const token = completeToken(target.elements.token.value);
  const details = await tryToken(instance, token);
  if (details.auth.method === "token") keepToken(instance, token);
  if (instance !== pageInstance) {
    location.assign(pageOf(instance));
    return;
  }
  say("");
  useToken(token);
  await enter(details);
}));

$("logout").addEventListener("click", () => {
  leave("You are logged out.");
  $("door-title").focus();
});

whenSessionEnds(() => {
  if (!shop.details) return;
  leave("The access token is not valid any more. Please log in again.", true);
  $("login-token").focus();
});

addEventListener("hashchange", () => {
  say("");
  show();
});

// After settings were changed.
addEventListener("shop-changed", async () => {
  shop.details = await get("private");
  $("logout").hidden = shop.details.auth.method !== "token";
  drawName();
});

// A tab that is logged in goes on; a shop without a token (a proxy protects it) is open at once.
const begin = async () => {
  await loadConfig();
  const token = storedToken();
  useToken(token);
  try {
    await enter(await tryToken(pageInstance, token));
  } catch (error) {
    if (error.status !== 401 && error.status !== 404) throw error;
    const isMissing = error.status === 404 && pageInstance === "default";
    leave(isMissing ? "There is no default shop in this backend. Enter the id of another one." : token ? error.message : "", !isMissing);
    if (isMissing) $("login-instance").value = "";
  }
};

begin().catch((error) => {
  const problem = error instanceof Problem ? error : new Problem("The page does not work in this browser. " + error.message);
  leave("", false);
  blame(null, problem);
});
