"use strict";
const form = document.getElementById("form");
const note = document.getElementById("note");
const query = new URLSearchParams(location.search);
const account = query.get("account") || "";
const token = query.get("token") || "";

const texts = {
  submitted: "Thank you. An officer of the exchange will decide, usually within one working day. Your wallet goes on by itself: you can close this page.",
  approved: "You are identified. Your wallet goes on by itself: you can close this page.",
  rejected: "An officer could not confirm what you entered. Please check it, and send it again.",
};

function say(text) {
  note.textContent = text;
  note.hidden = false;
}

function show(state) {
  form.hidden = state.state === "submitted" || state.state === "approved";
  if (texts[state.state]) say(texts[state.state]);
  if (form.hidden && state.next_url) location.assign(state.next_url);
}

async function answer(response) {
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(body.detail || body.hint || "the exchange answered " + response.status);
  return body;
}

async function load() {
  try {
    const asked = new URLSearchParams({ account, token });
    show(await answer(await fetch(location.pathname + "/state?" + asked)));
  } catch (problem) {
    form.hidden = true;
    say("This address is not valid: " + problem.message + ".");
  }
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const attributes = Object.fromEntries(new FormData(form));
  const button = form.querySelector("button");
  button.disabled = true;
  try {
    const body = JSON.stringify({ account, token, attributes });
    const headers = { "content-type": "application/json" };
    const response = await fetch(location.pathname, { method: "POST", headers, body });
    // What was sent before is there already.
    if (response.status === 409) await load();
    else show(await answer(response));
  } catch (problem) {
    say("Not sent: " + problem.message + ".");
  } finally {
    button.disabled = false;
  }
});

load();
