// Products with their stock.

import { ask, get } from "./api.js";
import { badge, facts, h, say, title } from "./dom.js";
import { check, doing, field, some, sure } from "./forms.js";
import { amountOf, currencyName, plain, shownAmount, time, typed, unitsOf } from "./money.js";

// Products on a page, and requests at a time for their details.
const PAGE = 50;
const AT_ONCE = 6;
const UNLIMITED = -1;
// The largest picture, in bytes. It becomes a part of contracts, which wallets load.
const IMAGE_BYTES_MAX = 32 * 1024;

const pathOf = (id) => "private/products/" + encodeURIComponent(id);

// Units that can still be sold; `null` for any number.
export const unitsLeft = ({ total_stock: stock, total_sold: sold, total_lost: lost, total_locked: locked = 0 }) =>
  (stock === UNLIMITED ? null : stock - sold - lost - locked);

export const productIds = async (signal) => (await get("private/products", { signal })).products.map((one) => one.product_id).sort();
export const product = (id, signal) => get(pathOf(id), { signal });

// The details of several products, a few requests at a time.
const detailsOf = async (ids, signal) => {
  const found = new Array(ids.length);
  let next = 0;
  const work = async () => {
    while (next < ids.length) {
      const place = next++;
      // One that was deleted meanwhile is left out.
      found[place] = await product(ids[place], signal).catch((error) => { if (error.status !== 404) throw error; });
    }
  };
  await Promise.all(Array.from({ length: Math.min(AT_ONCE, ids.length) }, work));
  return ids.map((id, place) => ({ id, details: found[place] })).filter(({ details }) => details);
};

const stockBadge = (details) => {
  const left = unitsLeft(details);
  if (left === null) return badge("good", "Unlimited");
  return left > 0 ? badge("good", left + " left") : badge("waiting", "Sold out");
};

const row = ({ id, details }) => h("tr", {},
  h("td", { class: "what" },
    h("a", { href: "#/product/" + encodeURIComponent(id) }, details.description || id),
    h("span", { class: "note" }, id)),
  h("td", { class: "when" }, details.total_sold + " sold"),
  h("td", { class: "state" }, stockBadge(details)),
  h("td", { class: "sum" }, shownAmount(details.price), h("span", { class: "note" }, " / " + details.unit)));

export const products = async (place, { query: params, signal }) => {
  const text = (params.get("q") || "").trim();
  const all = await productIds(signal);
  const ids = all.filter((id) => id.toLowerCase().includes(text.toLowerCase()));
  const body = h("tbody");
  const more = h("button", { type: "button", class: "quiet" }, "Show more");
  let shown = 0;
  const extend = async () => {
    const part = ids.slice(shown, shown + PAGE);
    body.append(...(await detailsOf(part, signal)).map(row));
    shown += part.length;
    more.hidden = shown >= ids.length;
  };
  more.addEventListener("click", doing(extend));
  await extend();
  const filter = h("form", { id: "product-filter", class: "filters", role: "search", "aria-label": "Products", novalidate: true },
    field({ id: "product-text", name: "q", label: "Search", type: "search", placeholder: "Product id", value: text }),
    h("div", { class: "row" }, h("button", { type: "submit" }, "Search")));
  filter.addEventListener("submit", doing(() => { location.hash = "#/products" + (filter.elements.q.value.trim() ? "?" + new URLSearchParams({ q: filter.elements.q.value.trim() }) : ""); }));
  const table = h("table", { id: "products" },
    h("caption", { class: "unseen" }, "Products"),
    h("thead", {}, h("tr", {}, ["Product", "Sold", "Stock"].map((name) => h("th", { scope: "col" }, name)), h("th", { scope: "col", class: "sum" }, "Price"))),
    body);
  place.append(
    h("div", { class: "head" }, title("Products"), h("a", { class: "button", href: "#/product" }, "Add product")),
    h("section", {},
      all.length > PAGE || text ? filter : null,
      ids.length ? [table, h("p", { class: "row pages" }, ids.length > PAGE ? more : null)] : h("p", { class: "note", id: "nothing" }, text ? "No product fits." : "No products yet.")));
};

// --- One product ---------------------------------------------------------------------------------------------------

const readImage = (file) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.addEventListener("load", () => resolve(reader.result));
  reader.addEventListener("error", () => reject(new Error("The picture cannot be read.")));
  reader.readAsDataURL(file);
});

const isCount = (text) => /^\d{1,9}$/.test(text.trim());

const productForm = (id, details) => {
  const isNew = !details;
  const isLimited = isNew || details.total_stock !== UNLIMITED;
  const restock = details && details.next_restock && typeof details.next_restock.t_s === "number" && details.next_restock.t_s > 0
    ? new Date(details.next_restock.t_s * 1_000).toLocaleDateString("sv") : "";
  return h("form", { id: "product-form", novalidate: true },
    isNew ? field({ id: "product-id", name: "product_id", label: "Product id", hint: "Such as the number in your catalogue. It cannot be changed.", maxlength: "64", spellcheck: "false", required: true }) : null,
    field({ id: "product-description", name: "description", label: "Description", hint: "Your customer sees it in the wallet.", maxlength: "500", value: details && details.description, required: true }),
    field({ id: "product-unit", name: "unit", label: "Unit", hint: "What is counted, such as piece.", maxlength: "50", value: details ? details.unit : "piece", required: true }),
    field({ id: "product-price", name: "price", label: "Price of a unit in " + currencyName(), inputmode: "decimal", value: details && plain(unitsOf(details.price)), required: true }),
    isNew ? field({ id: "product-stock", name: "stock", label: "Units in stock", optional: true, hint: "Empty: any number.", inputmode: "numeric" })
      : isLimited ? h("div", { class: "grid" },
        field({ id: "product-stock", name: "stock", label: "Units that came in", hint: "They are added to the stock.", inputmode: "numeric", value: "0", required: true }),
        field({ id: "product-lost", name: "lost", label: "Units that were lost", hint: "They are taken off.", inputmode: "numeric", value: "0", required: true })) : null,
    field({ id: "product-age", name: "age", label: "Minimum age of the customer", optional: true, inputmode: "numeric", value: details && details.minimum_age }),
    field({ id: "product-restock", name: "restock", label: "Next delivery", optional: true, type: "date", value: restock }),
    details && details.image && details.image.startsWith("data:image/") ? h("img", { class: "picture", src: details.image, alt: "The picture now" }) : null,
    field({ id: "product-image", name: "image", label: details && details.image ? "Another picture" : "Picture", optional: true, type: "file", accept: "image/*", hint: "Up to 32 KiB." }),
    h("button", { type: "submit" }, isNew ? "Add product" : "Save"));
};

// What the form says, on top of what is kept of an earlier state.
const wishOf = async ({ elements }, details) => {
  const kept = { ...(details || {}) };
  for (const name of ["total_sold", "total_locked", "minimum_age", "next_restock"]) delete kept[name];
  const number = (name) => (elements[name] && elements[name].value.trim() ? Number(elements[name].value) : 0);
  const wish = { ...kept, description: elements.description.value.trim(), unit: elements.unit.value.trim(), price: amountOf(typed(elements.price.value)) };
  if (!details) wish.total_stock = elements.stock.value.trim() ? number("stock") : UNLIMITED;
  else if (details.total_stock !== UNLIMITED) {
    wish.total_stock = details.total_stock + number("stock");
    wish.total_lost = details.total_lost + number("lost");
  }
  if (number("age")) wish.minimum_age = number("age");
  if (elements.restock.value) {
    const [year, month, day] = elements.restock.value.split("-").map(Number);
    wish.next_restock = { t_s: Math.floor(new Date(year, month - 1, day).getTime() / 1_000) };
  }
  const [file] = elements.image.files;
  if (file) wish.image = await readImage(file);
  return wish;
};

const RULES = [
  ["description", some, "Enter what it is."],
  ["unit", some, "Enter what is counted."],
  ["price", (text) => typed(text) !== null, "Enter a price such as 12.50."],
  ["age", (text) => !text.trim() || (isCount(text) && Number(text) <= 100), "Enter an age in years."],
];

export const oneProduct = async (place, { param: id, signal, reload }) => {
  const details = id ? await product(id, signal) : null;
  const form = productForm(id, details);
  form.addEventListener("submit", doing(async () => {
    const rules = [...RULES];
    if (!details) {
      rules.push(["product_id", (text) => /^[A-Za-z0-9\-._~:@+]+$/.test(text.trim()), "Use letters, digits and - . _ ~ : @ + only."]);
      rules.push(["stock", (text) => !text.trim() || isCount(text), "Enter a whole number."]);
    } else if (form.elements.stock) {
      rules.push(["stock", isCount, "Enter a whole number."], ["lost", isCount, "Enter a whole number."]);
      rules.push(["lost", (text) => Number(text) <= unitsLeft(details) + Number(form.elements.stock.value), "This is more than what is left."]);
    }
    const [file] = form.elements.image.files;
    rules.push(["image", () => !file || (file.size <= IMAGE_BYTES_MAX && file.type.startsWith("image/")), "Choose a picture of up to 32 KiB."]);
    if (!check(form, rules)) return;
    const wish = await wishOf(form, details);
    if (details) {
      await ask("PATCH", pathOf(id), wish, { signal });
      await reload();
      say("Saved.");
    } else {
      const product_id = form.elements.product_id.value.trim();
      await ask("POST", "private/products", { product_id, ...wish }, { signal });
      location.hash = "#/product/" + encodeURIComponent(product_id);
    }
  }, form));
  const remove = async () => {
    await ask("DELETE", pathOf(id), undefined, { signal });
    location.hash = "#/products";
  };
  const left = details && unitsLeft(details);
  const state = details ? h("section", { "aria-labelledby": "stock-title" },
    h("h3", { id: "stock-title" }, "Stock"),
    facts([
      ["Product", id], ["Left", left === null ? "any number" : left], ["Sold", details.total_sold], ["In carts and unpaid orders", details.total_locked],
      ["Lost", details.total_lost], ["Came in", left === null ? null : details.total_stock],
      ["Next delivery", details.next_restock && details.next_restock.t_s ? time(details.next_restock) : null],
    ]),
    h("div", { class: "row pages" }, sure({ id: "delete-product", text: "Delete", about: "this product", question: "Really delete?", work: remove }))) : null;
  place.append(
    h("p", { class: "back" }, h("a", { href: "#/products" }, "← All products")),
    h("div", { class: "head" }, title(details ? details.description : "New product"), details ? stockBadge(details) : ""),
    h("div", { class: "columns" }, ...[state, h("section", {}, details ? h("h3", {}, "Change") : "", form)].filter(Boolean)));
};
