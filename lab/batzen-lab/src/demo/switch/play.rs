//! The demo, step by step.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::participants::hub::{self, Hub, Onboarding, SETTLEMENT_STEPS, WindowTotals};
use crate::participants::{Behaviour, Fsps, Notice, Order, TransferOutcome};
use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use super::books::Sheet;
use super::files;
use super::steps::{StepSummary, Steps};
use super::{CURRENCY, DataDir};

/// The settlement model.
const MODEL: &str = "deferred-net";
/// Time that a participant waits for a callback.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time that transfers may take; the second value is for those that must expire.
const EXPIRATION: Duration = Duration::from_secs(60);
const SHORT_EXPIRATION: Duration = Duration::from_secs(1);
/// Each participant's net debit cap, in hundredths.
const CAP_CENTS: u64 = 100_000;
/// The participants' funds at the settlement bank, in hundredths. The last one has less than its cap.
pub(crate) const FUNDS_CENTS: [u64; 4] = [1_000_000, 1_000_000, 1_000_000, 5_000];
/// The number of plain transfers that succeed.
const TRANSFERS: u64 = 40;

/// The results of the demo.
pub(super) struct Results {
    /// The books at the end.
    pub(crate) sheet: Sheet,
    /// The files written.
    pub(crate) reports: Vec<std::path::PathBuf>,
}

/// Plays the whole demo.
pub(crate) fn play(steps: &mut Steps, hub: &Hub, fsps: &Fsps, data_dir: &DataDir) -> anyhow::Result<Results> {
    steps.step("four eyes", || four_eyes(hub))?;
    steps.step("onboard", || onboard(hub, fsps))?;
    steps.step("transfer", || transfer(fsps))?;
    steps.step("limits", || limits(fsps))?;
    steps.step("abort", || abort(fsps))?;
    steps.step("repeat", || repeat(fsps))?;
    steps.step("expire", || expire(fsps))?;
    let closed = steps.step("window", || close(hub, fsps))?;
    let settlement = steps.step("settle", || settle(hub, &closed))?;
    let reports = steps.step("report", || {
        let reports = files::write(&settlement.id, &closed, fsps, data_dir)?;
        let summary = format!("{} files in {}", reports.len(), data_dir.reports().display());
        let count = reports.len();
        Ok((reports, StepSummary { count, summary }))
    })?;
    let sheet = steps.step("balance", || {
        let sheet = Sheet::read(hub, fsps, &settlement)?;
        let problems = sheet.problems();
        ensure!(problems.is_empty(), "{}", problems.join("; "));
        let summary = "debits equal credits, nothing is pending, all notices agree".to_owned();
        Ok((sheet, StepSummary { count: fsps.outcomes().len(), summary }))
    })?;
    Ok(Results { sheet, reports })
}

/// A closed window.
pub(super) struct Closed {
    /// Its number.
    pub(crate) window: u64,
    /// The switch's sent and received amounts of each participant, in the order of the participants.
    pub(crate) totals: Vec<WindowTotals>,
}

/// Tries a change by the first operator alone. It must not take effect: the proposal waits, its proposer
/// cannot approve it, and the second operator rejects it.
fn try_alone(hub: &Hub, method: &str, path: &str, body: &Value) -> anyhow::Result<()> {
    let (status, answer) = hub.call(0, method, path, Some(body))?;
    ensure!(status == 202, "{path}: a change was not proposed: HTTP {status}: {answer}");
    ensure!(answer["state"] == "OPEN", "{path}: a change took effect at once: {answer}");
    let approval = format!("/approvals/{}", answer["approvalId"]);
    for decision in ["APPROVE", "REJECT"] {
        let (alone, _) = hub.call(0, "POST", &approval, Some(&json!({"decision": decision})))?;
        ensure!(alone == 403, "{path}: an operator decided on its own proposal: HTTP {alone}");
    }
    let body = json!({"decision": "REJECT", "reason": "tried by one operator alone"});
    let (status, answer) = hub.call(1, "POST", &approval, Some(&body))?;
    ensure!(status == 200, "{path}: HTTP {status}: {answer}");
    let (status, _) = hub.call(1, "POST", &approval, Some(&json!({"decision": "APPROVE"})))?;
    ensure!(status == 409, "{path}: a rejected proposal was approved: HTTP {status}");
    Ok(())
}

fn four_eyes(hub: &Hub) -> anyhow::Result<((), StepSummary)> {
    let body = json!({"currency": CURRENCY, "type": "HUB_RECONCILIATION"});
    try_alone(hub, "POST", "/participants/Hub/accounts", &body)?;
    let window = hub.open_window()?;
    let body = json!({"state": "CLOSED", "reason": "by one operator alone"});
    try_alone(hub, "POST", &format!("/settlementWindows/{window}"), &body)?;
    ensure!(hub.open_window()? == window, "one operator alone closed a window");
    let body = json!({"settlementModel": MODEL, "settlementWindows": [{"id": window}]});
    try_alone(hub, "POST", "/settlements", &body)?;
    ensure!(hub.get("/settlements")? == json!([]), "one operator alone made a settlement");
    let summary = "new accounts, the end of a window, a settlement: one operator alone could do none of them"
        .to_owned();
    Ok(((), StepSummary { count: 3, summary }))
}

/// Checks that each change had two operators: one proposed it, another approved it. Returns the number of
/// changes.
fn all_by_two(hub: &Hub) -> anyhow::Result<usize> {
    let approvals = hub.get("/approvals?state=APPROVED")?;
    let approvals = approvals.as_array().context("a list of approvals")?;
    for approval in approvals {
        let (one, other) = (&approval["proposedBy"], &approval["decidedBy"]);
        ensure!(one.is_string() && other.is_string() && one != other, "by one operator: {approval}");
    }
    Ok(approvals.len())
}

fn onboard(hub: &Hub, fsps: &Fsps) -> anyhow::Result<((), StepSummary)> {
    hub.found(CURRENCY, MODEL)?;
    for ((index, name), funds_cents) in fsps.names().iter().enumerate().zip(FUNDS_CENTS) {
        let callback_url = fsps.callback_url(index);
        let onboarding = Onboarding {
            name,
            currency: CURRENCY,
            callback_url: &callback_url,
            cap_cents: CAP_CENTS,
            funds_cents,
        };
        hub.onboard(&onboarding).with_context(|| name.clone())?;
        funds_alone(hub, name)?;
    }
    let changes = all_by_two(hub)?;
    let names = fsps.names().join(", ");
    let summary = format!(
        "{names} have accounts, limits and funds: {changes} changes, each proposed by one operator and approved by another"
    );
    Ok(((), StepSummary { count: fsps.names().len(), summary }))
}

/// One operator alone cannot add funds.
fn funds_alone(hub: &Hub, name: &str) -> anyhow::Result<()> {
    let before = hub.liquidity(name, CURRENCY)?;
    let (path, body) = hub.funds_request(name, CURRENCY, "recordFundsIn", "1", "by one operator alone")?;
    try_alone(hub, "POST", &path, &body).with_context(|| name.to_owned())?;
    let after = hub.liquidity(name, CURRENCY)?;
    ensure!(after == before, "{name}: one operator alone brought funds");
    Ok(())
}

/// Sends a transfer and waits for its outcome.
fn send(
    fsps: &Fsps,
    payer: usize,
    payee: usize,
    cents: u64,
    behaviour: Behaviour,
) -> anyhow::Result<TransferOutcome> {
    let expiration = match behaviour {
        Behaviour::Silent | Behaviour::Late => SHORT_EXPIRATION,
        _ => EXPIRATION,
    };
    let id = fsps.send(Order { payer, payee, cents, behaviour, expiration });
    let outcome = fsps.outcome(id, PATIENCE).context("outcomes are kept")?;
    ensure!(outcome.payer_notice.is_some(), "transfer {id}: no callback");
    ensure!(!outcome.is_contradictory, "transfer {id}: payer and payee received contradictory notices");
    Ok(outcome)
}

fn expect(outcome: &TransferOutcome, expected: Notice) -> anyhow::Result<()> {
    let payer = outcome.payer_notice.context("no callback")?;
    ensure!(payer == expected, "{}: expected {expected}, got {payer}", outcome.behaviour.name());
    Ok(())
}

fn transfer(fsps: &Fsps) -> anyhow::Result<((), StepSummary)> {
    let participants = fsps.names().len() - 1;
    let ids: Vec<_> = (0..TRANSFERS)
        .map(|number| {
            // The last participant has few funds, so here it only receives.
            let payer = usize::try_from(number).unwrap_or(0) % participants;
            let payee =
                (payer + 1 + usize::try_from(number / 3).unwrap_or(0) % participants) % (participants + 1);
            let cents = 100 + 37 * number;
            let behaviour = if number % 5 == 0 { Behaviour::Reserve } else { Behaviour::Accept };
            fsps.send(Order { payer, payee, cents, behaviour, expiration: EXPIRATION })
        })
        .collect();
    let mut patches = 0;
    for id in ids {
        let outcome = fsps.outcome(id, PATIENCE).context("outcomes are kept")?;
        expect(&outcome, Notice::Committed)?;
        if outcome.behaviour == Behaviour::Reserve {
            ensure!(outcome.payee_notice == Some(Notice::Committed), "the payee of {id} received no notice");
            patches += 1;
        }
    }
    let summary = format!("{TRANSFERS} transfers committed, {patches} with word to the payee");
    Ok(((), StepSummary { count: usize::try_from(TRANSFERS)?, summary }))
}

fn limits(fsps: &Fsps) -> anyhow::Result<((), StepSummary)> {
    let last = fsps.names().len() - 1;
    // The first participant's funds exceed the cap; the last one's are below it.
    let over_cap = send(fsps, 0, 1, CAP_CENTS + 50_000, Behaviour::Accept)?;
    expect(&over_cap, Notice::Error(4200))?;
    let over_funds = send(fsps, last, 0, FUNDS_CENTS[last] + 60_000, Behaviour::Accept)?;
    expect(&over_funds, Notice::Error(4001))?;
    let summary = "beyond the net debit cap: 4200; beyond the liquidity: 4001".to_owned();
    Ok(((), StepSummary { count: 2, summary }))
}

fn abort(fsps: &Fsps) -> anyhow::Result<((), StepSummary)> {
    expect(&send(fsps, 0, 1, 1_000, Behaviour::Reject)?, Notice::Error(5104))?;
    expect(&send(fsps, 1, 2, 1_000, Behaviour::WrongFulfilment)?, Notice::Error(3100))?;
    let summary = "the payee rejected: 5104; a wrong fulfilment: 3100".to_owned();
    Ok(((), StepSummary { count: 2, summary }))
}

fn repeat(fsps: &Fsps) -> anyhow::Result<((), StepSummary)> {
    expect(&send(fsps, 0, 2, 500, Behaviour::Duplicate)?, Notice::Committed)?;
    let order = Order {
        payer: 1,
        payee: 0,
        cents: 700,
        behaviour: Behaviour::ChangedDuplicate,
        expiration: EXPIRATION,
    };
    let id = fsps.send(order);
    let is_enough = |outcome: &TransferOutcome| outcome.payer_notice.is_some() && outcome.modified > 0;
    let changed = fsps.outcome_when(id, PATIENCE, is_enough).context("outcomes are kept")?;
    expect(&changed, Notice::Committed)?;
    ensure!(changed.modified > 0, "a changed repetition was not refused");
    let summary = "a repetition took effect once; a changed one was refused: 3106".to_owned();
    Ok(((), StepSummary { count: 2, summary }))
}

fn expire(fsps: &Fsps) -> anyhow::Result<((), StepSummary)> {
    expect(&send(fsps, 0, 1, 300, Behaviour::Silent)?, Notice::Error(3303))?;
    expect(&send(fsps, 2, 1, 300, Behaviour::Late)?, Notice::Error(3303))?;
    let summary = "a silent payee and a late one: 3303 to both sides".to_owned();
    Ok(((), StepSummary { count: 2, summary }))
}

/// Closes the window and compares its totals with the participants' own records.
fn close(hub: &Hub, fsps: &Fsps) -> anyhow::Result<(Closed, StepSummary)> {
    let window = hub.close_window("end of the day")?;
    ensure!(hub.open_window()? != window, "the window is still open");
    let told = hub.window_totals(&window)?;
    let totals = own_totals(fsps);
    for own in &totals {
        let said = told.iter().find(|said| said.name == own.name);
        ensure!(said == Some(own), "{}: the switch says {said:?} instead of {own:?}", own.name);
    }
    ensure!(told.len() == totals.len(), "the window knows {} participants", told.len());
    let gross: u128 = totals.iter().map(|total| total.sent).sum();
    let paid: u128 = totals.iter().filter(|total| total.net > 0).map(|total| total.net.unsigned_abs()).sum();
    let amount = |amount: u128| -> anyhow::Result<String> { Ok(hub::amount(u64::try_from(amount / 100)?)) };
    let summary = format!(
        "window {window} closed, the next one is open; {} {CURRENCY} net of {} gross are to change hands",
        amount(paid)?,
        amount(gross)?
    );
    let count = totals.len();
    let window = window.as_u64().context("windows have numbers")?;
    Ok((Closed { window, totals }, StepSummary { count, summary }))
}

/// A settlement that has taken all its steps.
pub(crate) struct Settled {
    /// Its number.
    pub(crate) id: String,
    /// Each participant's funds at the settlement bank afterwards, in the order of the participants.
    pub(crate) liquidity: Vec<i128>,
}

/// Settles the window step by step, and books what the settlement bank has moved. Afterwards no participant
/// owes anything.
fn settle(hub: &Hub, closed: &Closed) -> anyhow::Result<(Settled, StepSummary)> {
    let id = hub.begin_settlement(MODEL, &closed.window.into())?;
    let nets = hub.nets(&id)?;
    for total in &closed.totals {
        let net: i128 = nets.iter().filter(|net| net.name == total.name).map(|net| net.net).sum();
        ensure!(net == total.net, "{}: a net of {net} instead of {} ten-thousandths", total.name, total.net);
    }
    ensure!(nets.iter().map(|net| net.net).sum::<i128>() == 0, "the nets do not sum to zero");
    for step in SETTLEMENT_STEPS {
        let settlement = hub.step_settlement(&id, step).with_context(|| step.to_owned())?;
        ensure!(settlement["state"] == step, "after {step} the settlement is {}", settlement["state"]);
    }
    let window = hub.get(&format!("/settlementWindows/{}", closed.window))?["state"].clone();
    ensure!(window == "SETTLED", "the settled window is {window}");
    let mut liquidity = Vec::new();
    for (total, funds_cents) in closed.totals.iter().zip(FUNDS_CENTS) {
        let WindowTotals { name, net, .. } = total;
        let position = hub.position(name, CURRENCY)?;
        ensure!(position == 0, "{name} still owes {position} ten-thousandths");
        hub.book_settled(name, CURRENCY, *net).with_context(|| name.clone())?;
        let left = hub.liquidity(name, CURRENCY)?;
        let expected = i128::from(funds_cents) * 100 - net;
        ensure!(left == expected, "{name} has {left} instead of {expected} ten-thousandths");
        liquidity.push(left);
    }
    let changes = all_by_two(hub)?;
    let summary = format!(
        "settlement {id} in {} steps; every position is zero again, and funds have moved by the nets; \
         {changes} changes so far, each by two operators",
        SETTLEMENT_STEPS.len()
    );
    Ok((Settled { id: id.to_string(), liquidity }, StepSummary { count: nets.len(), summary }))
}

/// Each participant's own record of sent and received amounts, in the order of the participants.
fn own_totals(fsps: &Fsps) -> Vec<WindowTotals> {
    let total = |name: &String| WindowTotals {
        name: name.clone(),
        sent_count: 0,
        sent: 0,
        received_count: 0,
        received: 0,
        net: 0,
    };
    let mut totals: Vec<WindowTotals> = fsps.names().iter().map(total).collect();
    for outcome in committed(fsps).values() {
        let amount = u128::from(outcome.cents) * 100;
        let signed = i128::from(outcome.cents) * 100;
        let payer = &mut totals[outcome.payer];
        payer.sent_count += 1;
        payer.sent += amount;
        payer.net += signed;
        let payee = &mut totals[outcome.payee];
        payee.received_count += 1;
        payee.received += amount;
        payee.net -= signed;
    }
    totals
}

/// The committed transfers by id.
pub(crate) fn committed(fsps: &Fsps) -> BTreeMap<String, TransferOutcome> {
    let is_committed = |outcome: &TransferOutcome| outcome.payer_notice.is_some_and(Notice::is_committed);
    let outcomes = fsps.outcomes().into_iter().filter(|(_, outcome)| is_committed(outcome));
    outcomes.map(|(id, outcome)| (id.to_string(), outcome)).collect()
}
