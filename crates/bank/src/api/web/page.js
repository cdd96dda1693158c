"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const SECTIONS = ["account", "withdrawing", "paying", "history"];
  const ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
  let csrf = "", currency = "", operation = null, timer = 0, payment = null;

  const say = (text, bad = false) => {
    $("message").textContent = text;
    $("message").className = bad ? "bad" : "";
    $("message").hidden = !text;
  };

  const PROBLEMS = {
    5101: "This is your own account.",
    5102: "There is not enough money in the account.",
    5104: "This amount is too large.",
    5105: "Account or password is wrong.",
    5106: "There is no such account.",
    5112: "This form was already used for another payment. Please send it again.",
    5114: "This reserve was paid before.",
    5117: "The withdrawal was cancelled.",
    5118: "This account exists already. Log in, or choose another name.",
  };
  const FIELDS = { username: "This name cannot be used.", password: "Please choose a password.", to: "This is no account.", amount: "This is no amount.", text: "This subject cannot be used." };

  const ask = async (method, path, body) => {
    const headers = body === undefined ? {} : { "content-type": "application/json" };
    if (method === "POST") headers["x-csrf-token"] = csrf;
    const text = body === undefined ? undefined : JSON.stringify(body);
    let answer;
    try {
      answer = await fetch("web/" + path, { method, headers, body: text, credentials: "same-origin", cache: "no-store" });
    } catch {
      throw new Error("The bank cannot be reached. Please try again.");
    }
    if (answer.ok) return answer.status === 204 ? null : answer.json();
    const error = await answer.json().catch(() => ({}));
    const problem = answer.status === 401 ? "Please log in." : answer.status === 429 ? "Too many wrong passwords. Please try again later."
      : FIELDS[error.field] || PROBLEMS[error.code] || error.hint || "Something went wrong.";
    throw Object.assign(new Error(problem), { status: answer.status });
  };

  const doing = (work) => async (event) => {
    if (event) event.preventDefault();
    const buttons = document.querySelectorAll("button");
    buttons.forEach((button) => { button.disabled = true; });
    try {
      await work(event);
    } catch (error) {
      if (error.status === 401) leave();
      say(error.message, true);
    } finally {
      buttons.forEach((button) => { button.disabled = false; });
    }
  };

  const amount = (form) => currency + ":" + form.elements.amount.value.trim().replace(",", ".");

  const leave = () => {
    csrf = "";
    payment = null;
    forget();
    SECTIONS.forEach((id) => { $(id).hidden = true; });
    $("logout").hidden = true;
    $("door").hidden = false;
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
    sum.textContent = (entry.is_credit ? "+" : "−") + entry.amount;
    title.textContent = KINDS[entry.kind][entry.is_credit ? 1 : 0] + (entry.other ? " " + entry.other : "");
    note.className = "note";
    note.textContent = new Date(entry.time_s * 1000).toLocaleString() + (entry.text ? " · " + entry.text : "");
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
    currency = view.currency;
    $("name").textContent = view.account;
    $("balance").textContent = (view.is_negative ? "−" : "") + view.balance + " " + currency;
    $("balance").className = view.is_negative ? "minus" : "";
    $("reserved").textContent = view.reserved + " " + currency + " of this is set aside for withdrawals that wait for confirmation.";
    $("reserved").hidden = Number(view.reserved) === 0;
    $("payto").textContent = view.payto;
    if (!before) $("lines").replaceChildren();
    $("lines").append(...view.transactions.map(line));
    $("nothing").hidden = $("lines").children.length > 0;
    $("older").hidden = !view.older;
    $("older").dataset.before = view.older || "";
    $("door").hidden = true;
    $("logout").hidden = false;
    SECTIONS.forEach((id) => { $(id).hidden = false; });
  };

  const forget = () => {
    clearTimeout(timer);
    operation = null;
    $("operation").hidden = true;
  };

  const watch = async () => {
    const mine = operation;
    try {
      const state = await ask("GET", "withdrawals/" + mine);
      if (operation !== mine) return;
      if (state.confirmed || state.aborted) {
        forget();
        say(state.confirmed ? "Confirmed. The money is on its way to the wallet." : "The withdrawal was cancelled.", state.aborted);
        await show();
        return;
      }
      $("confirm").hidden = !state.selected;
      $("qr").toggleAttribute("hidden", state.selected);
      $("uri").hidden = state.selected;
      $("step").textContent = state.selected
        ? "The wallet is ready: " + state.amount + " " + currency + " go to " + state.exchange + ". Confirm?"
        : "Scan this with the wallet.";
    } catch (error) {
      if (error.status === 401) { leave(); say(error.message, true); return; }
    }
    if (operation === mine) timer = setTimeout(watch, 1000);
  };

  $("login").addEventListener("submit", doing(async (event) => {
    const form = event.target;
    const name = event.submitter && event.submitter.name === "register" ? "register" : "login";
    const session = await ask("POST", name, { username: form.elements.username.value, password: form.elements.password.value });
    csrf = session.csrf;
    form.reset();
    say("");
    await show();
  }));

  $("logout").addEventListener("click", doing(async () => {
    await ask("POST", "logout");
    leave();
    say("");
  }));

  $("withdraw").addEventListener("submit", doing(async (event) => {
    forget();
    const view = await ask("POST", "withdrawals", { amount: amount(event.target) });
    event.target.reset();
    operation = view.id;
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("d", view.qr_path);
    $("qr").setAttribute("viewBox", "0 0 " + view.qr_size + " " + view.qr_size);
    $("qr").setAttribute("shape-rendering", "crispEdges");
    $("qr").replaceChildren(path);
    $("uri").href = view.uri;
    $("operation").hidden = false;
    say("");
    await watch();
  }));

  const end = (verb) => doing(async () => {
    await ask("POST", "withdrawals/" + operation + "/" + verb);
    clearTimeout(timer);
    await watch();
  });
  $("confirm").addEventListener("click", end("confirm"));
  $("abort").addEventListener("click", end("abort"));

  $("pay").addEventListener("submit", doing(async (event) => {
    const form = event.target;
    const wish = { to: form.elements.to.value.trim(), amount: amount(form), text: form.elements.text.value.trim() };
    const same = payment && ["to", "amount", "text"].every((name) => payment[name] === wish[name]);
    // Without an answer the same payment goes out again under the same id, and is made once. 26 letters hold 16 bytes.
    if (!same) {
      const letters = [...crypto.getRandomValues(new Uint8Array(26))].map((byte) => ALPHABET[byte % 32]);
      letters[25] = ALPHABET[(letters[25].charCodeAt(0) % 8) * 4];
      payment = { ...wish, id: letters.join("") };
    }
    await ask("POST", "payments", payment);
    payment = null;
    form.reset();
    say("Sent " + wish.amount.split(":")[1] + " " + currency + " to " + wish.to + ".");
    await show();
  }));

  $("older").addEventListener("click", doing(() => show($("older").dataset.before)));

  show().catch((error) => { leave(); say(error.message, true); });
})();
