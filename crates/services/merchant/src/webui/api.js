// Requests to the private API, the session, and sentences for the errors.

import { setCurrency } from "./money.js";

const TOKEN_PREFIX = "secret-token:";
const DEFAULT = "default";

// Where this page is: `…/webui/` or `…/instances/ID/webui/`.
const ownPath = new URL(".", location.href).pathname;
const place = /^(.*\/)instances\/([^/]+)\/webui\/$/.exec(ownPath) || /^(.*\/)()webui\/$/.exec(ownPath) || [null, "/", ""];
const root = place[1];
export const pageInstance = decodeURIComponent(place[2]) || DEFAULT;

const pathOf = (instance) => (instance === DEFAULT ? root : root + "instances/" + encodeURIComponent(instance) + "/");
export const pageOf = (instance) => pathOf(instance) + "webui/";
// The page's own part of the path, so that a proxy for one instance is enough.
const base = new URL("..", location.href).pathname;

export class Problem extends Error {
  constructor(text, more = {}) {
    super(text);
    Object.assign(this, more);
  }
}

// --- The session ---------------------------------------------------------------------------------------------------

// The token is in the storage of this tab, which ends with it. `null` in external mode.
let token = null;
let onEnd = () => {};

const slot = (instance) => "batzen-merchant " + pathOf(instance);
export const storedToken = () => sessionStorage.getItem(slot(pageInstance));
export const completeToken = (text) => {
  const bare = text.trim();
  return bare.startsWith(TOKEN_PREFIX) ? bare : TOKEN_PREFIX + bare;
};
export const useToken = (text) => { token = text; };
export const keepToken = (instance, text) => sessionStorage.setItem(slot(instance), text);
export const forgetToken = () => {
  token = null;
  sessionStorage.removeItem(slot(pageInstance));
};
export const whenSessionEnds = (handler) => { onEnd = handler; };

// --- Requests ------------------------------------------------------------------------------------------------------

// By the backend's code: what is wrong, and with which field of a form.
const PROBLEMS = {
  24: ["This is not the payto:// address of a bank account.", "payto"],
  30: ["This is not an amount in the currency of this backend.", "amount"],
  2000: ["There is no shop with this id.", "instance"],
  2005: ["There is no such order."],
  2006: ["There is no such product any more."],
  2015: ["The access token is wrong.", "token"],
  2016: ["This shop was deleted."],
  2500: ["The shop has no active bank account. Add one below Accounts."],
  2502: ["The backend does not understand this order."],
  2503: ["There is another order with this id."],
  2504: ["Refunds would be possible for longer than the exchange may wait with its transfer."],
  2530: ["This is more than what is left of the payment.", "amount"],
  2531: ["The order is not paid."],
  2532: ["This order cannot be refunded (any more)."],
  2017: ["There is no such transfer any more."],
  2520: ["A customer may still pay this order."],
  2521: ["A paid order cannot be deleted."],
  2550: ["The exchange does not know this transfer (yet).", "wtid"],
  2551: ["The exchange cannot be asked now. The transfer is in the list; report it again later."],
  2552: ["The exchange says that it transferred another amount.", "amount"],
  2553: ["The exchange contradicts what it has signed before. Ask its operator."],
  2554: ["The exchange took a higher wire fee than it had announced. Ask its operator."],
  2555: ["This is not an account of the shop.", "payto"],
  2556: ["A verified transfer cannot be forgotten."],
  2557: ["This transfer was reported with another amount.", "amount"],
  2602: ["This access token cannot be used.", "token"],
  2650: ["There is another product with this id.", "product_id"],
  2660: ["The units that were lost cannot become fewer.", "lost"],
  2661: ["More units would be lost than there are.", "lost"],
  2662: ["The stock cannot become smaller.", "stock"],
  2680: ["Units of the product are in carts or unpaid orders."],
  2700: ["The exchange has no account for this wire method.", "method"],
  2750: ["The exchange has closed this."],
  2751: ["There is no such money for tips."],
  2752: ["There is not enough money left.", "amount"],
};

const problemOf = async (answer) => {
  const error = await answer.json().catch(() => ({}));
  const [text, field] = PROBLEMS[error.code] || [
    [error.hint || "The backend refused this.", error.detail].filter(Boolean).join(" ")];
  const isTooLarge = answer.status === 413;
  return new Problem(isTooLarge ? "This is too large." : text, { field, status: answer.status, code: error.code, body: error });
};

const send = async (method, url, body, { signal, as = token } = {}) => {
  const headers = body === undefined ? {} : { "content-type": "application/json" };
  if (as) headers.authorization = "Bearer " + as;
  const text = body === undefined ? undefined : JSON.stringify(body);
  let answer;
  try {
    answer = await fetch(url, { method, headers, body: text, signal, credentials: "same-origin", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The backend cannot be reached. Please try again.", { isOffline: true });
  }
  if (!answer.ok) throw await problemOf(answer);
  return answer.status === 204 ? null : answer.json();
};

// A request below the instance's base URL.
export const ask = async (method, path, body, options) => {
  try {
    return await send(method, base + path, body, options);
  } catch (error) {
    if (error.status !== 401) throw error;
    // A token may open less than everything.
    const isValid = await tryToken(pageInstance, token).then(() => true, () => false);
    if (isValid) throw new Problem("Your access token does not allow this.", { status: 403 });
    onEnd();
    throw error;
  }
};
export const get = (path, options) => ask("GET", path, undefined, options);

export const qrOf = (uri, options) => ask("POST", "webui/qr", { uri }, options);

// The instance as it describes itself, for a token that was not used before.
export const tryToken = (instance, candidate) => {
  const path = instance === pageInstance ? base : pathOf(instance);
  return send("GET", path + "private", undefined, { as: candidate });
};

export const loadConfig = async () => setCurrency((await send("GET", base + "config", undefined, { as: null })).currency);

// A query string of the members that have a value.
export const query = (members) => {
  const given = Object.entries(members).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? "?" + new URLSearchParams(given) : "";
};
