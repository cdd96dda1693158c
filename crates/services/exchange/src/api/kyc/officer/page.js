"use strict";
const login = document.getElementById("login");
const note = document.getElementById("note");
const list = document.getElementById("cases");
const base = location.pathname.replace(/\/+$/, "");
// Kept by this page alone, until it is closed.
let token = "";

function say(text) {
  note.textContent = text;
  note.hidden = !text;
}

function make(kind, text, parent) {
  const element = document.createElement(kind);
  if (text !== undefined) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

async function call(path, body) {
  const headers = { authorization: "Bearer " + token };
  if (body) headers["content-type"] = "application/json";
  const options = body ? { method: "POST", headers, body: JSON.stringify(body) } : { headers };
  const response = await fetch(base + path, options);
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(answer.detail || answer.hint || "the exchange answered " + response.status);
  return answer;
}

const outcomes = {
  approved: "Approved: the customer is identified.",
  rejected: "Rejected: the customer was asked to try again.",
  needs_another_officer: "Noted. Money would be released, so another officer must approve as well.",
};

async function decide(one, reason, approved) {
  try {
    const wish = { h_payto: one.h_payto, provider: one.provider, case: one.case, approved, reason };
    const answer = await call("/decisions", wish);
    await load();
    say(outcomes[answer.outcome]);
  } catch (problem) {
    say("Nothing decided: " + problem.message + ".");
  }
}

function show(one, officer) {
  const box = make("article", undefined, list);
  box.className = "case";
  make("h2", one.payto_uri || one.h_payto, box);
  const facts = make("dl", undefined, box);
  const fact = (name, value) => {
    make("dt", name, facts);
    make("dd", value, facts);
  };
  fact("Provider", one.provider);
  fact("Begun", new Date(one.started.t_s * 1000).toLocaleString());
  fact("Held payouts", one.held);
  if (one.approved_by) fact("Approved by", one.approved_by);
  if (typeof one.attributes === "object") {
    for (const [name, value] of Object.entries(one.attributes)) fact(name.replaceAll("_", " "), String(value));
  } else {
    fact("Attributes", String(one.attributes));
  }
  const id = "reason-" + one.h_payto + "-" + one.provider;
  const label = make("label", "Why do you decide so?", box);
  label.htmlFor = id;
  const reason = make("input", undefined, box);
  reason.id = id;
  reason.maxLength = 500;
  const approve = make("button", one.approvals_missing > 1 ? "Approve (one more must follow)" : "Approve", box);
  const reject = make("button", "Reject", box);
  reject.className = "second";
  for (const [button, approved] of [[approve, true], [reject, false]]) {
    button.type = "button";
    button.addEventListener("click", () => decide(one, reason.value, approved));
  }
  if (one.approved_by === officer) approve.disabled = true;
}

async function load() {
  const answer = await call("/cases");
  list.replaceChildren();
  login.hidden = true;
  say(answer.cases.length ? "" : "No case waits.");
  for (const one of answer.cases) show(one, answer.officer);
}

login.addEventListener("submit", async (event) => {
  event.preventDefault();
  token = document.getElementById("token").value.trim();
  try {
    await load();
  } catch (problem) {
    say("Not logged in: " + problem.message + ".");
  }
});
