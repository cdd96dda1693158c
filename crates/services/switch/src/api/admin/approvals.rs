//! Proposals that wait for a second operator, and the decisions on them.

use std::sync::Arc;

use batzen_http::Response;
use batzen_protocol::Timestamp;
use batzen_tables::switch::{AccountKind, ApprovalRow, Approvals, SwitchAccountKey, SwitchAccounts};
use serde_json::{Value, json};

use super::bodies::{self, remark};
use super::books::time;
use super::{ADMIN, Answer, HUB_NAME, OperatorRequest, Table, failed, fault, operator};
use crate::MAX_BODY_BYTES;
use crate::approvals::{change_of, settlement_of};
use crate::errors::ApiError;
use crate::rules::admin::FundsOrder;
use crate::rules::approvals::is_unfinished;
use crate::rules::{ApprovalState, Change, Refusal};
use crate::values::{currency_text, format_amount};

/// The most approvals in one answer.
const APPROVALS_MAX: usize = 1000;

pub(super) fn routes(table: Table) -> Table {
    table
        .get("/approvals", ADMIN, operator!(approvals))
        .get("/approvals/:id", ADMIN, operator!(approval))
        .post("/approvals/:id", MAX_BODY_BYTES, ADMIN, operator!(approval_decide))
}

impl OperatorRequest<'_> {
    async fn approvals(&self) -> Answer {
        let state = self.request.query_text("state");
        if state.is_some_and(|name| ApprovalState::ALL.iter().all(|state| state.name() != name)) {
            let names = ApprovalState::ALL.map(ApprovalState::name).join(", ");
            return Err(fault(400, ApiError::ValidationError, &format!("the state is one of {names}")));
        }
        let mut all = self.service.store().all::<Approvals>().map_err(|error| failed(&error.into()))?;
        all.sort_by_key(|found| std::cmp::Reverse(found.key.id));
        let shown: Result<Vec<Value>, Response> = all
            .iter()
            .map(|found| self.approval_json(found.key.id, &found.row))
            .filter(|shown| {
                state.is_none_or(|state| shown.as_ref().map_or(true, |shown| shown["state"] == state))
            })
            .take(APPROVALS_MAX)
            .collect();
        Ok(Response::json(200, &shown?))
    }

    async fn approval(&self) -> Answer {
        let (id, row) = self.approval_row(self.param("id"))?;
        Ok(Response::json(200, &self.approval_json(id, &row)?))
    }

    fn approval_row(&self, id: &str) -> Result<(u64, ApprovalRow), Response> {
        let id = id.parse().map_err(|_| failed(&Refusal::Unknown("approval").into()))?;
        Ok((id, self.service.approval(id).map_err(|error| failed(&error))?))
    }

    async fn approval_decide(&self) -> Answer {
        let body: bodies::Decision = self.json()?;
        let (id, _) = self.approval_row(self.param("id"))?;
        let to = match body.decision.as_str() {
            "APPROVE" => ApprovalState::Approved,
            "REJECT" => ApprovalState::Rejected,
            "WITHDRAW" => ApprovalState::Withdrawn,
            _ => {
                let text = "the decision is APPROVE, REJECT or WITHDRAW";
                return Err(fault(400, ApiError::MalformedSyntax, text));
            }
        };
        let reason = remark(&body.reason).map_err(|error| failed(&error))?;
        // In a separate task: an approved change is carried out even if the client disconnects.
        let (service, operator) = (Arc::clone(self.service), self.operator.to_owned());
        let deciding = tokio::spawn(async move { service.decide(id, &operator, to, &reason).await });
        let row = deciding.await.expect("decisions do not panic").map_err(|error| failed(&error))?;
        match ApprovalState::of(&row) {
            ApprovalState::Approved => {
                let change = change_of(&row);
                let mut result = self.result(&change, number_of(&change, &row))?;
                result["approvalId"] = json!(id);
                Ok(Response::json(200, &result))
            }
            ApprovalState::Failed => Err(fault(409, ApiError::ValidationError, &row.result)),
            state => Ok(Response::json(200, &json!({ "approvalId": id, "state": state.name() }))),
        }
    }

    fn approval_json(&self, id: u64, row: &ApprovalRow) -> Result<Value, Response> {
        let unread = |error: batzen_store::StoreError| failed(&error.into());
        let change = change_of(row);
        let expires = match ApprovalState::of(row) {
            ApprovalState::Open => self.service.expiration_of(id, row).map_err(unread)?,
            _ => None,
        };
        let state = match ApprovalState::of(row) {
            ApprovalState::Open if expires.is_some_and(|expires| expires <= self.service.now()) => {
                ApprovalState::Expired
            }
            state => state,
        };
        let is_open = state == ApprovalState::Open;
        let reasons = matches!(state, ApprovalState::Rejected | ApprovalState::Withdrawn);
        let about = About::of(&change);
        Ok(json!({
            "approvalId": id,
            "state": state.name(),
            "summary": self.summary(&change, is_open),
            "participant": about.participant,
            "currency": about.currency.map(currency_text),
            "amount": about.amount.map(format_amount),
            "reason": about.reason,
            "change": readable(&change),
            "proposedBy": row.proposed_by,
            "proposed": time(row.proposed),
            "expires": expires.map(time),
            "decidedBy": (!row.decided_by.is_empty()).then_some(&row.decided_by),
            "decided": (row.decided != Timestamp::ZERO).then(|| time(row.decided)),
            "decisionReason": (reasons && !row.result.is_empty()).then_some(&row.result),
            "result": if is_unfinished(row) { "being carried out" } else { &row.result },
        }))
    }

    /// A sentence about what will change (or has changed). While the approval is open, it includes the
    /// current value.
    fn summary(&self, change: &Change, is_open: bool) -> String {
        let money =
            |amount: u128, currency: u32| format!("{} {}", format_amount(amount), currency_text(currency));
        let switched = |active: bool| if active { "switch on" } else { "switch off" };
        match change {
            Change::Accounts { name: Some(name), currency, .. } => {
                format!("open accounts of {name} in {}", currency_text(*currency))
            }
            Change::Accounts { name: None, currency, .. } => {
                format!("open the hub's accounts in {}", currency_text(*currency))
            }
            Change::Activate { name, active } => format!("{} participant {name}", switched(*active)),
            Change::ActivateAccount { name, currency, kind, active, .. } => {
                let owner = name.as_deref().unwrap_or(HUB_NAME);
                let kind = AccountKind::from_number(*kind).map_or("", AccountKind::name);
                format!("{} the {kind} account of {owner} in {}", switched(*active), currency_text(*currency))
            }
            Change::Limit { name, currency, ndc, alarm_percentage, .. } => {
                let now = self.cap_of(name, *currency).filter(|_| is_open);
                let now = now.map(|now| format!(" (now {})", money(now, *currency))).unwrap_or_default();
                let alarm = alarm_percentage.map(|part| format!(", alarm at {part} %")).unwrap_or_default();
                format!("set the net debit cap of {name} to {}{now}{alarm}", money(*ndc, *currency))
            }
            Change::Endpoint { name, endpoint, url, .. } => format!("set {endpoint} of {name} to {url}"),
            Change::Model { name, gross, currency, active, .. } => {
                let kind = if *gross { "gross" } else { "net" };
                let of = if *currency == 0 { "other currencies".into() } else { currency_text(*currency) };
                let use_ = if *active { "" } else { ", not used" };
                format!("set settlement model {name}: {kind}, {of}{use_}")
            }
            Change::FundsIn(order) => {
                format!("record {} in from {}", money(order.amount, order.currency), order.name)
            }
            Change::FundsOut(order) => {
                format!("reserve {} of {} to go out", money(order.amount, order.currency), order.name)
            }
            Change::EndFundsOut { name, currency, amount, commit, .. } => {
                let verb = if *commit { "commit" } else { "abort" };
                format!("{verb} funds out: {} of {name}", money(*amount, *currency))
            }
            Change::CloseWindow { id, .. } => format!("close settlement window {id} and open the next"),
            Change::Settle { model, windows, .. } => {
                let windows: Vec<String> = windows.iter().map(u64::to_string).collect();
                format!("settle windows {} by model {model}", windows.join(", "))
            }
            Change::StepSettlement { settlement, steps } => {
                let steps: Vec<String> =
                    steps.iter().map(|one| format!("{} to {}", one.name, one.state)).collect();
                format!("move accounts of settlement {settlement}: {}", steps.join(", "))
            }
            Change::AbortSettlement { settlement, .. } => format!("abort settlement {settlement}"),
        }
    }

    fn cap_of(&self, name: &str, currency: u32) -> Option<u128> {
        let number = self.service.directory().by_name(name)?.number;
        let key = SwitchAccountKey::new(number, currency, AccountKind::Position);
        self.service.store().get::<SwitchAccounts>(&key).ok()??.row.ndc
    }
}

/// The number in the answer to a change that has been made.
fn number_of(change: &Change, row: &ApprovalRow) -> u64 {
    match change {
        Change::Settle { .. } => settlement_of(row).unwrap_or_default(),
        Change::StepSettlement { settlement, .. } | Change::AbortSettlement { settlement, .. } => *settlement,
        _ => 0,
    }
}

/// The fields that every approval shows of its change.
struct About<'a> {
    participant: Option<&'a str>,
    currency: Option<u32>,
    amount: Option<u128>,
    reason: Option<&'a str>,
}

impl<'a> About<'a> {
    fn of(change: &'a Change) -> Self {
        let none = Self { participant: None, currency: None, amount: None, reason: None };
        let money = |name: &'a str, currency: u32, amount: u128| Self {
            participant: Some(name),
            currency: Some(currency),
            amount: Some(amount),
            reason: None,
        };
        match change {
            Change::Accounts { name, currency, .. } | Change::ActivateAccount { name, currency, .. } => {
                let participant = Some(name.as_deref().unwrap_or(HUB_NAME));
                Self { participant, currency: Some(*currency), ..none }
            }
            Change::Activate { name, .. } | Change::Endpoint { name, .. } => {
                Self { participant: Some(name), ..none }
            }
            Change::Limit { name, currency, ndc, .. } => money(name, *currency, *ndc),
            Change::Model { currency, .. } => {
                Self { currency: (*currency != 0).then_some(*currency), ..none }
            }
            Change::FundsIn(order) | Change::FundsOut(order) => {
                let FundsOrder { name, currency, amount, reason, .. } = order;
                Self { reason: Some(reason), ..money(name, *currency, *amount) }
            }
            Change::EndFundsOut { name, currency, amount, reason, .. } => {
                Self { reason: Some(reason), ..money(name, *currency, *amount) }
            }
            Change::CloseWindow { reason, .. }
            | Change::Settle { reason, .. }
            | Change::AbortSettlement { reason, .. } => Self { reason: Some(reason), ..none },
            Change::StepSettlement { steps, .. } => match steps.as_slice() {
                [step] => Self {
                    participant: Some(&step.name),
                    currency: Some(step.currency),
                    reason: Some(&step.reason),
                    ..none
                },
                steps => Self { reason: steps.first().map(|step| step.reason.as_str()), ..none },
            },
        }
    }
}

/// A change with currencies and accounts by their names.
fn readable(change: &Change) -> Value {
    let mut value = serde_json::to_value(change).expect("changes are JSON");
    name_currencies(&mut value);
    if let Change::ActivateAccount { kind, .. } = change {
        value["kind"] = json!(AccountKind::from_number(*kind).map(AccountKind::name));
    }
    value
}

fn name_currencies(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field.as_u64().and_then(|number| u32::try_from(number).ok()) {
                    Some(0) if name == "currency" => *field = Value::Null,
                    Some(number) if name == "currency" => *field = json!(currency_text(number)),
                    _ => name_currencies(field),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(name_currencies),
        _ => {}
    }
}
