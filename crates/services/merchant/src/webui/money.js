// Amounts and times, as people read and type them. Amounts are whole numbers of 10^-8 units inside.

const UNITS = 100_000_000n;
const DIGITS = 8;

let currency = "";

export const setCurrency = (name) => { currency = name; };
export const currencyName = () => currency;

// Units of an amount of the protocol, such as "KUDOS:12.5".
export const unitsOf = (amount) => {
  const [whole, decimals = ""] = amount.slice(amount.indexOf(":") + 1).split(".");
  return BigInt(whole) * UNITS + BigInt(decimals.slice(0, DIGITS).padEnd(DIGITS, "0"));
};

const decimal = (units, least) => {
  const decimals = String(units % UNITS).padStart(DIGITS, "0").replace(/0+$/, "").padEnd(least, "0");
  return String(units / UNITS) + (decimals ? "." + decimals : "");
};

// The amount as the protocol has it.
export const amountOf = (units) => currency + ":" + decimal(units, 0);

// The number alone, for a field or a table of numbers: "1234.50".
export const plain = (units) => decimal(units, 2);

// The amount as people read it: "1,234.50 KUDOS".
export const money = (units) => {
  const [whole, decimals] = decimal(units, 2).split(".");
  return whole.replace(/\B(?=(\d{3})+$)/g, ",") + "." + decimals + " " + currency;
};
export const shownAmount = (amount) => money(unitsOf(amount));

// What people type: a comma is the decimal point, unless there is a point as well. `null` if it is not an amount.
export const typed = (text) => {
  const bare = text.trim().replace(/\s/g, "");
  const number = bare.includes(".") ? bare.replace(/,/g, "") : bare.replace(",", ".");
  return /^\d{1,15}(\.\d{1,8})?$/.test(number) ? unitsOf(":" + number) : null;
};

// --- Times ---------------------------------------------------------------------------------------------------------

export const HOUR_S = 3_600;
export const DAY_S = 86_400;
const US = 1_000_000;

// A time of the protocol, for people.
export const time = ({ t_s: seconds }) => {
  if (seconds === "never") return "never";
  return new Date(seconds * 1_000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
};
export const isPast = ({ t_s: seconds }) => seconds !== "never" && seconds * 1_000 <= Date.now();

export const duration = (seconds) => ({ d_us: seconds * US });
// `null` if it lasts forever.
export const secondsOf = ({ d_us: us }) => (us === "forever" ? null : us / US);
