// Elements, announcements, and what all views share.

export const $ = (id) => document.getElementById(id);

// An element: its attributes, then its contents. Texts stay texts.
export const h = (tag, attributes = {}, ...contents) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...contents.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
};

export const unseen = (text) => h("span", { class: "unseen" }, text);
export const badge = (kind, text) => h("span", { class: "badge " + kind }, text);

// A list of names and values. Pairs without a value are left out.
export const facts = (pairs) => h("dl", {}, pairs
  .filter(([, value]) => value !== null && value !== undefined && value !== "")
  .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));

// A link that leads out of the page, if it is one of the web.
export const outside = (url, text) => {
  const isWeb = /^https?:/.test(url);
  return isWeb ? h("a", { href: url, target: "_blank", rel: "noopener noreferrer" }, text || url) : text || url;
};

// --- Announcements -------------------------------------------------------------------------------------------------

export const say = (text, isBad = false) => {
  $("message").textContent = text;
  $("message").className = isBad ? "bad" : "";
  $("message").hidden = !text;
  if (text) $("message").scrollIntoView({ block: "nearest" });
};

// The heading of a view: what the keyboard and a screen reader continue from.
export const title = (text) => h("h2", { tabindex: "-1", class: "title" }, text);

// --- Copying -------------------------------------------------------------------------------------------------------

// A text that cannot be changed, with a button that copies it. A page without the permission to write to the clipboard
// selects the text, for the keys or the menu of the browser.
export const copied = (id, label, text) => {
  const input = h("input", { id, readonly: true, value: text });
  const copy = async () => {
    input.focus();
    input.select();
    let isDone = false;
    try {
      await navigator.clipboard.writeText(text);
      isDone = true;
    } catch {
      isDone = document.execCommand("copy");
    }
    say(isDone ? "Copied." : "Selected. Press Ctrl+C (on a Mac ⌘C) to copy it.");
  };
  const button = h("button", { type: "button", class: "quiet", click: copy }, "Copy", unseen(" " + label));
  return h("div", { class: "field" }, h("label", { for: id }, label), h("div", { class: "copy" }, input, button));
};

// --- QR codes ------------------------------------------------------------------------------------------------------

const SVG = "http://www.w3.org/2000/svg";

export const qrCode = ({ size, path }, label) => {
  const svg = document.createElementNS(SVG, "svg");
  const dark = document.createElementNS(SVG, "path");
  for (const [name, value] of [
    ["class", "qr"], ["role", "img"], ["aria-label", label], ["viewBox", `0 0 ${size} ${size}`], ["shape-rendering", "crispEdges"],
  ]) svg.setAttribute(name, value);
  dark.setAttribute("d", path);
  svg.append(dark);
  return svg;
};

// --- Files ---------------------------------------------------------------------------------------------------------

export const download = (name, kind, text) => {
  const url = URL.createObjectURL(new Blob([text], { type: kind }));
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
};
