"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const SECTIONS = ["account", "withdrawing", "paying", "history"];
  const ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
  const currency = document.body.dataset.currency;
  let csrf = "", operation = null, timer = 0, payment = null, balance = 0, busy = false;

  // --- Amounts -----------------------------------------------------------------------------------------------------------

  // "1234.5" as people read it: at least two decimals, thousands apart.
  const shown = (text) => {
    const [whole, decimals = ""] = text.split(".");
    return whole.replace(/\B(?=(\d{3})+$)/g, ",") + "." + decimals.padEnd(2, "0");
  };
  const money = (text) => shown(text) + " " + currency;
  // What people type: a comma is the decimal point, unless there is a point as well.
  const typed = (text) => {
    const bare = text.trim().replace(/\s/g, "");
    return bare.includes(".") ? bare.replace(/,/g, "") : bare.replace(",", ".");
  };
  const isAmount = (text) => /^\d+(\.\d{1,8})?$/.test(text) && Number(text) > 0;

  // --- Announcements -----------------------------------------------------------------------------------------------------

  const say = (text, bad = false) => {
    $("message").textContent = text;
    $("message").className = bad ? "bad" : "";
    $("message").hidden = !text;
    if (text) $("message").scrollIntoView({ block: "nearest" });
  };

  // By the bank's code: what is wrong, and with which field of the form.
  const PROBLEMS = {
    5101: ["This is your own account.", "to"],
    5102: ["There is not enough money in the account.", "amount"],
    5104: ["This amount is too large.", "amount"],
    5105: ["The account name or the password is wrong.", "password"],
    5106: ["There is no such account.", "to"],
    5112: ["This form was used for another payment before. Please send it again."],
    5114: ["This reserve was paid before."],
    5117: ["The withdrawal was cancelled."],
    5118: ["This name is taken. Choose another one, or log in.", "username"],
    5126: ["An exchange needs the key that the wallet shows, and no other key, in the text.", "text"],
  };
  const FIELDS = {
    username: "This name cannot be used.", password: "This password cannot be used.", to: "This is neither a name nor an address of an account.",
    amount: "This is not an amount in " + currency + ".", text: "This subject cannot be used.",
  };

  class Problem extends Error {
    constructor(text, field, status) { super(text); Object.assign(this, { field, status }); }
  }

  const clear = (form) => {
    form.querySelectorAll(".error").forEach((node) => node.remove());
    for (const input of form.elements) {
      if (!input.name) continue;
      input.removeAttribute("aria-invalid");
      const hint = $(input.id + "-hint");
      if (hint) input.setAttribute("aria-describedby", hint.id); else input.removeAttribute("aria-describedby");
    }
  };
  const mark = (input, text) => {
    const note = document.createElement("p");
    note.className = "error";
    note.id = input.id + "-error";
    note.textContent = text;
    input.after(note);
    input.setAttribute("aria-invalid", "true");
    input.setAttribute("aria-describedby", [input.getAttribute("aria-describedby"), note.id].filter(Boolean).join(" "));
  };
  // Shows what is wrong beside its field, or at the top.
  const blame = (form, problem) => {
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
  // Checks a form before it is sent: each field has its sentence.
  const check = (form, rules) => {
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
  const some = (value) => value.trim() !== "";

  // --- Requests ----------------------------------------------------------------------------------------------------------

  const ask = async (method, path, body) => {
    const headers = body === undefined ? {} : { "content-type": "application/json" };
    if (method === "POST") headers["x-csrf-token"] = csrf;
    const text = body === undefined ? undefined : JSON.stringify(body);
    let answer;
    try {
      answer = await fetch("web/" + path, { method, headers, body: text, credentials: "same-origin", cache: "no-store" });
    } catch {
      throw new Problem("The bank cannot be reached. Please try again.");
    }
    if (answer.ok) return answer.status === 204 ? null : answer.json();
    const error = await answer.json().catch(() => ({}));
    if (answer.status === 429) throw new Problem("Too many wrong passwords. Please try again later.", "password", 429);
    if (FIELDS[error.field]) throw new Problem(FIELDS[error.field], error.field, answer.status);
    const [problem, field] = PROBLEMS[error.code] || [error.hint || "Something went wrong. Please try again."];
    throw new Problem(answer.status === 401 && !path.startsWith("log") ? "Your session has ended. Please log in." : problem, field, answer.status);
  };

  // One thing at a time. A button keeps the focus meanwhile.
  const doing = (work, form) => async (event) => {
    if (event) event.preventDefault();
    if (busy) return;
    busy = true;
    const buttons = document.querySelectorAll("button");
    buttons.forEach((button) => button.setAttribute("aria-disabled", "true"));
    try {
      await work(event);
    } catch (error) {
      if (error.status === 401 && csrf) {
        leave();
        say(error.message, true);
      } else {
        blame(form && $(form), error);
      }
    } finally {
      busy = false;
      buttons.forEach((button) => button.removeAttribute("aria-disabled"));
    }
  };

  // --- The account -------------------------------------------------------------------------------------------------------

  const enter = (isNew) => {
    $("door").hidden = isNew;
    $("entry").hidden = !isNew;
  };
  const leave = () => {
    csrf = "";
    payment = null;
    forget();
    edit();
    ["login", "signup", "pay", "withdraw"].forEach((id) => { $(id).reset(); clear($(id)); });
    SECTIONS.forEach((id) => { $(id).hidden = true; });
    $("logout").hidden = true;
    enter(false);
    $("lines").replaceChildren();
  };

  const KINDS = { transfer: ["Transfer to", "Transfer from"], withdrawal: ["E-cash withdrawal at", "E-cash withdrawal of"], bonus: ["Bonus", "Welcome bonus"], payment: ["To", "From"] };

  const line = (entry) => {
    const item = document.createElement("li");
    const what = document.createElement("div");
    const sum = document.createElement("div");
    const title = document.createElement("div");
    const note = document.createElement("div");
    what.className = "what";
    sum.className = "sum " + (entry.is_credit ? "plus" : "minus");
    sum.textContent = (entry.is_credit ? "+" : "−") + shown(entry.amount);
    title.textContent = KINDS[entry.kind][entry.is_credit ? 1 : 0] + (entry.other ? " " + entry.other : "");
    note.className = "note";
    note.textContent = new Date(entry.time_s * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" }) + (entry.text ? " · " + entry.text : "");
    what.append(title, note);
    item.append(what, sum);
    return item;
  };

  const show = async (before) => {
    const view = await ask("GET", "account" + (before ? "?before=" + before : ""));
    if (!view) {
      leave();
      return;
    }
    csrf = view.csrf;
    balance = Number(view.balance) * (view.is_negative ? -1 : 1);
    $("name").textContent = "Account " + view.account;
    $("balance").textContent = (view.is_negative ? "−" : "") + money(view.balance);
    $("balance").className = view.is_negative ? "minus" : "";
    $("reserved").textContent = money(view.reserved) + " of this is set aside for withdrawals that wait for confirmation.";
    $("reserved").hidden = Number(view.reserved) === 0;
    $("payto").value = view.payto;
    if (!before) $("lines").replaceChildren();
    $("lines").append(...view.transactions.map(line));
    $("nothing").hidden = $("lines").children.length > 0;
    $("older").hidden = !view.older;
    $("older").dataset.before = view.older || "";
    $("door").hidden = true;
    $("entry").hidden = true;
    $("logout").hidden = false;
    SECTIONS.forEach((id) => { $(id).hidden = false; });
  };

  // --- Log in, sign up, log out ------------------------------------------------------------------------------------------

  const begin = async (form, path) => {
    const { username, password } = form.elements;
    const session = await ask("POST", path, { username: username.value.trim(), password: password.value });
    csrf = session.csrf;
    form.reset();
    say("");
    await show();
    $("name").focus();
  };
  const NAME = ["username", some, "Enter the name of the account."], PASSWORD = ["password", (text) => text !== "", "Enter a password."];
  $("login").addEventListener("submit", doing(async ({ target }) => {
    if (check(target, [NAME, PASSWORD])) await begin(target, "login");
  }, "login"));
  $("signup").addEventListener("submit", doing(async ({ target }) => {
    const isSame = (text) => text === target.elements.password.value;
    if (check(target, [NAME, PASSWORD, ["again", isSame, "The two passwords differ."]])) await begin(target, "register");
  }, "signup"));
  $("to-signup").addEventListener("click", () => { say(""); enter(true); $("entry-title").focus(); });
  $("to-login").addEventListener("click", () => { say(""); enter(false); $("door-title").focus(); });
  $("logout").addEventListener("click", doing(async () => {
    await ask("POST", "logout");
    leave();
    say("You are logged out.");
    $("door-title").focus();
  }));

  // --- Payments: a form, then a review -----------------------------------------------------------------------------------

  const edit = () => {
    $("pay").hidden = false;
    $("review").hidden = true;
  };
  $("pay").addEventListener("submit", (event) => {
    event.preventDefault();
    const form = event.target;
    const amount = typed(form.elements.amount.value);
    if (!check(form, [
      ["to", some, "Enter who receives the money."],
      ["amount", some, "Enter an amount."],
      ["amount", () => isAmount(amount), "Enter an amount such as 12.50."],
    ])) return;
    const wish = { to: form.elements.to.value.trim(), amount: currency + ":" + amount, text: form.elements.text.value.trim() };
    const same = payment && ["to", "amount", "text"].every((name) => payment[name] === wish[name]);
    // Without an answer the same payment goes out again under the same id, and is made once. 26 letters hold 16 bytes.
    if (!same) {
      const letters = [...crypto.getRandomValues(new Uint8Array(26))].map((byte) => ALPHABET[byte % 32]);
      letters[25] = ALPHABET[(ALPHABET.indexOf(letters[25]) % 8) * 4];
      payment = { ...wish, id: letters.join("") };
    }
    say("");
    $("review-to").textContent = wish.to;
    $("review-amount").textContent = money(amount);
    $("review-text").textContent = wish.text || "none";
    const left = balance - Number(amount);
    $("review-left").textContent = (left < 0 ? "−" : "") + money(Math.abs(left).toFixed(2));
    $("review-left").className = left < 0 ? "minus" : "";
    form.hidden = true;
    $("review").hidden = false;
    $("review-title").focus();
  });
  $("change").addEventListener("click", () => { edit(); $("pay-to").focus(); });
  $("send").addEventListener("click", doing(async () => {
    const { to, amount } = payment;
    try {
      await ask("POST", "payments", payment);
    } catch (error) {
      // A field to be corrected needs its form. Otherwise the same payment can be sent again.
      if (error.field || error.status === 409) edit();
      throw error;
    }
    payment = null;
    $("pay").reset();
    clear($("pay"));
    edit();
    await show();
    say("Sent " + money(amount.split(":")[1]) + " to " + to + ".");
    $("paying-title").setAttribute("tabindex", "-1");
    $("paying-title").focus({ preventScroll: true });
  }, "pay"));

  // --- Withdrawals -------------------------------------------------------------------------------------------------------

  const forget = () => {
    clearTimeout(timer);
    operation = null;
    $("operation").hidden = true;
    $("withdraw").hidden = false;
  };

  const watch = async () => {
    const mine = operation;
    try {
      const state = await ask("GET", "withdrawals/" + mine);
      if (operation !== mine) return;
      if (state.confirmed || state.aborted) {
        forget();
        await show();
        say(state.confirmed ? "Confirmed. The money is on its way to the wallet." : "The withdrawal was cancelled.", state.aborted);
        return;
      }
      $("confirm").hidden = !state.selected;
      $("offer").hidden = state.selected;
      const step = state.selected
        ? "The wallet is ready: " + money(state.amount) + " go to " + state.exchange + ". Confirm?"
        : "Scan the code with the wallet on your phone, or open the link on this device. The page then asks you to confirm.";
      if ($("step").textContent !== step) {
        $("step").textContent = step;
        if (state.selected) $("confirm").focus();
      }
    } catch (error) {
      if (error.status === 401) { leave(); say(error.message, true); return; }
    }
    if (operation === mine) timer = setTimeout(watch, 1000);
  };

  $("withdraw").addEventListener("submit", doing(async ({ target }) => {
    const amount = typed(target.elements.amount.value);
    if (!check(target, [["amount", some, "Enter an amount."], ["amount", () => isAmount(amount), "Enter an amount such as 20.00."]])) return;
    forget();
    const view = await ask("POST", "withdrawals", { amount: currency + ":" + amount });
    target.reset();
    operation = view.id;
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("d", view.qr_path);
    $("qr").setAttribute("viewBox", "0 0 " + view.qr_size + " " + view.qr_size);
    $("qr").setAttribute("shape-rendering", "crispEdges");
    $("qr").replaceChildren(path);
    $("uri").href = view.uri;
    $("uri-text").value = view.uri;
    $("operation-title").textContent = "Withdrawal of " + money(amount);
    $("step").textContent = "";
    $("withdraw").hidden = true;
    $("operation").hidden = false;
    say("");
    $("operation-title").focus();
    await watch();
  }, "withdraw"));

  const end = (verb) => doing(async () => {
    await ask("POST", "withdrawals/" + operation + "/" + verb);
    clearTimeout(timer);
    await watch();
  });
  $("confirm").addEventListener("click", end("confirm"));
  $("abort").addEventListener("click", end("abort"));

  // --- Copying -----------------------------------------------------------------------------------------------------------

  // A page without the permission to write to the clipboard selects the text, for the keys or the menu of the browser.
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      const input = $(button.dataset.copy);
      input.focus();
      input.select();
      let copied = false;
      try {
        await navigator.clipboard.writeText(input.value);
        copied = true;
      } catch {
        copied = document.execCommand("copy");
      }
      say(copied ? "Copied." : "Selected. Press Ctrl+C (on a Mac ⌘C) to copy it.");
    });
  }

  $("older").addEventListener("click", doing(() => show($("older").dataset.before)));

  show().catch((error) => { leave(); say(error.message, true); });
})();
