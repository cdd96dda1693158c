// Forms: fields with their labels, hints and errors.

import { $, h, say, unseen } from "./dom.js";

// A field. `options` makes it a choice, `rows` a larger text. Further members are attributes of the input.
export const field = ({ id, name, label, hint, optional, options, rows, value, ...attributes }) => {
  const all = { id, name, autocomplete: "off", "aria-describedby": hint ? id + "-hint" : null, ...attributes };
  let input;
  if (options) input = h("select", all, options.map(([key, text]) => h("option", { value: key, selected: key === value }, text)));
  else if (rows) input = h("textarea", { ...all, rows });
  else input = h("input", all);
  if (value !== undefined && value !== null) input.value = value;
  return h("div", { class: "field" },
    h("label", { for: id }, label, optional ? h("span", { class: "optional" }, " (optional)") : null),
    hint ? h("p", { class: "hint", id: id + "-hint" }, hint) : null,
    input);
};

export const clear = (form) => {
  form.querySelectorAll(".error").forEach((node) => node.remove());
  for (const input of form.elements) {
    if (!input.name) continue;
    input.removeAttribute("aria-invalid");
    const hint = $(input.id + "-hint");
    if (hint) input.setAttribute("aria-describedby", hint.id); else input.removeAttribute("aria-describedby");
  }
};

const mark = (input, text) => {
  const note = h("p", { class: "error", id: input.id + "-error" }, text);
  input.after(note);
  input.setAttribute("aria-invalid", "true");
  input.setAttribute("aria-describedby", [input.getAttribute("aria-describedby"), note.id].filter(Boolean).join(" "));
};

// Shows what is wrong beside its field, or at the top.
export const blame = (form, problem) => {
  const input = form && problem.field && form.elements[problem.field];
  if (!input) {
    say(problem.message, true);
    return;
  }
  say("");
  clear(form);
  mark(input, problem.message);
  input.focus();
};

// Checks a form before it is sent: each rule has the name of a field, a test, and its sentence.
export const check = (form, rules) => {
  clear(form);
  let first = null;
  for (const [name, isRight, text] of rules) {
    const input = form.elements[name];
    if (isRight(input.value) || input.getAttribute("aria-invalid")) continue;
    mark(input, text);
    first = first || input;
  }
  if (first) first.focus();
  return !first;
};

export const some = (value) => value.trim() !== "";

let isBusy = false;

// Handles an event: one thing at a time. A button keeps the focus meanwhile.
export const doing = (work, form) => async (event) => {
  event.preventDefault();
  if (isBusy) return;
  isBusy = true;
  // What was said of the last thing is over.
  say("");
  document.body.setAttribute("aria-busy", "true");
  const buttons = [...document.querySelectorAll("button")];
  buttons.forEach((button) => button.setAttribute("aria-disabled", "true"));
  try {
    await work(event);
  } catch (error) {
    if (error.name !== "AbortError") blame(form || (event.target.closest && event.target.closest("form")), error);
  } finally {
    isBusy = false;
    document.body.removeAttribute("aria-busy");
    buttons.forEach((button) => button.removeAttribute("aria-disabled"));
  }
};

// A button for what cannot be undone: the first click asks, the second one does it.
export const sure = ({ id, text, about, question, work }) => {
  const label = h("span", {}, text, about ? unseen(" " + about) : null);
  const button = h("button", { type: "button", class: "bad", id }, label);
  let isAsked = false;
  const ask = (asked) => {
    isAsked = asked;
    label.textContent = asked ? question : text;
    if (about) label.append(unseen(" " + about));
  };
  button.addEventListener("click", (event) => {
    if (isAsked) doing(work)(event); else ask(true);
  });
  button.addEventListener("blur", () => ask(false));
  return button;
};
