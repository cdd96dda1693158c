//! Settlements.

use std::sync::Arc;

use batzen_http::Response;
use batzen_tables::switch::{AccountKind, SettlementAccountKey, Settlements};
use serde::Deserialize;
use serde_json::{Value, json};

use super::bodies::remark;
use super::books::time;
use super::{ADMIN, Answer, OperatorRequest, Table, failed, operator};
use crate::MAX_BODY_BYTES;
use crate::errors::ApiError;
use crate::rules::admin::AccountStep;
use crate::rules::settlements::{SettlementState, check_step, windows_of};
use crate::rules::{Change as Order, Refusal};
use crate::settlement::{Settlement, net};
use crate::treasury::OperatorError;
use crate::values::{currency_text, format_amount, format_signed};

/// The most windows in one settlement.
const WINDOWS_MAX: usize = 1000;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NewSettlement {
    settlement_model: String,
    #[serde(default)]
    reason: String,
    settlement_windows: Vec<WindowId>,
}

#[derive(Deserialize)]
struct WindowId {
    id: u64,
}

#[derive(Deserialize)]
struct Change {
    state: Option<String>,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    participants: Vec<ChangedParticipant>,
}

#[derive(Deserialize)]
struct ChangedParticipant {
    id: u32,
    accounts: Vec<ChangedAccount>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ChangedAccount {
    id: u32,
    state: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    external_reference: String,
}

fn malformed(text: &str) -> Response {
    failed(&OperatorError::Malformed(text.to_owned()))
}

fn state_name(number: u8) -> &'static str {
    SettlementState::from_number(number).map_or("", SettlementState::name)
}

pub(super) fn routes(table: Table) -> Table {
    table
        .get("/settlements", ADMIN, operator!(settlements))
        .post("/settlements", MAX_BODY_BYTES, ADMIN, operator!(settlement_create))
        .get("/settlements/:id", ADMIN, operator!(settlement))
        .put("/settlements/:id", MAX_BODY_BYTES, ADMIN, operator!(settlement_change))
}

impl OperatorRequest<'_> {
    pub(super) fn settlement_of(&self, id: &str) -> Result<Settlement, Response> {
        let id = id.parse().map_err(|_| failed(&Refusal::Unknown("settlement").into()))?;
        Settlement::read(self.service.store(), id).map_err(|error| failed(&error))
    }

    async fn settlement_create(&self) -> Answer {
        let body: NewSettlement = self.json()?;
        let mut windows: Vec<u64> = body.settlement_windows.iter().map(|window| window.id).collect();
        windows.sort_unstable();
        windows.dedup();
        if windows.is_empty() || windows.len() > WINDOWS_MAX {
            return Err(malformed("a settlement has 1 to 1,000 windows"));
        }
        let reason = remark(&body.reason).map_err(|error| failed(&error))?;
        let model = body.settlement_model;
        self.propose(200, Order::Settle { model, reason, windows }).await
    }

    async fn settlements(&self) -> Answer {
        let all = self.service.store().all::<Settlements>().map_err(|error| failed(&error.into()))?;
        let all: Result<Vec<Value>, Response> = all
            .iter()
            .map(|found| self.settlement_json(&self.settlement_of(&found.key.id.to_string())?))
            .collect();
        Ok(Response::json(200, &all?))
    }

    async fn settlement(&self) -> Answer {
        Ok(Response::json(200, &self.settlement_json(&self.settlement_of(self.param("id"))?)?))
    }

    pub(super) fn settlement_json(&self, settlement: &Settlement) -> Result<Value, Response> {
        let directory = self.service.directory();
        let mut participants: Vec<Value> = Vec::new();
        for (key, row) in &settlement.accounts {
            let account = self.account_row(key.participant, key.currency, AccountKind::Position)?;
            let currency = currency_text(key.currency);
            let account = json!({
                "id": account.map(|row| row.id), "currency": currency, "state": state_name(row.state),
                "reason": row.reason, "externalReference": row.reference,
                "sent": format_amount(row.sent), "received": format_amount(row.received),
                "netSettlementAmount": { "currency": currency, "amount": format_signed(net(row)) },
                "beyondHeadroom": row.beyond_headroom,
            });
            match participants.last_mut().filter(|last| last["id"] == key.participant) {
                Some(last) => last["accounts"].as_array_mut().expect("made below").push(account),
                None => participants.push(json!({
                    "id": key.participant, "name": directory.name(key.participant), "accounts": [account],
                })),
            }
        }
        let windows: Vec<Value> = windows_of(&settlement.row).iter().map(|id| json!({ "id": id })).collect();
        Ok(json!({
            "id": settlement.id, "state": settlement.state().name(), "settlementModel": settlement.row.model,
            "reason": settlement.row.reason, "createdDate": time(settlement.row.created),
            "changedDate": time(settlement.row.changed), "settlementWindows": windows,
            "participants": participants,
        }))
    }

    /// Takes steps of accounts, or ends the whole settlement.
    async fn settlement_change(&self) -> Answer {
        let body: Change = self.json()?;
        let settlement = self.settlement_of(self.param("id"))?;
        let id = settlement.id;
        if let Some(state) = &body.state {
            if state != "ABORTED" || !body.participants.is_empty() {
                return Err(malformed("a settlement as a whole can only be ABORTED"));
            }
            let reason = remark(&body.reason).map_err(|error| failed(&error))?;
            return self.propose(200, Order::AbortSettlement { settlement: id, reason }).await;
        }
        let mut steps = Vec::new();
        let mut errors = Vec::new();
        for participant in &body.participants {
            for account in &participant.accounts {
                match self.step_of(&settlement, participant.id, account) {
                    Ok(step) => steps.push(step),
                    Err(error) => errors.push(step_error(participant.id, account.id, &error)),
                }
            }
        }
        if steps.is_empty() && errors.is_empty() {
            return Err(malformed("no account is named"));
        }
        if !errors.is_empty() {
            return self.settlement_errors(id, errors);
        }
        if self.service.config.four_eyes {
            return self.propose(200, Order::StepSettlement { settlement: id, steps }).await;
        }
        // Each account is answered separately.
        let service = Arc::clone(self.service);
        let stepping = tokio::spawn(async move {
            let untaken = service.step_accounts(id, &steps).await?;
            let error = |(step, error): &(&AccountStep, OperatorError)| {
                step_error(step.participant, step.account, error)
            };
            Ok::<Vec<Value>, OperatorError>(untaken.iter().map(error).collect())
        });
        let errors = stepping.await.expect("steps do not panic").map_err(|error| failed(&error))?;
        tracing::info!(
            operator = self.operator,
            settlement = id,
            errors = errors.len(),
            "settlement moved on"
        );
        if errors.is_empty() { self.settlement().await } else { self.settlement_errors(id, errors) }
    }

    fn settlement_errors(&self, id: u64, errors: Vec<Value>) -> Answer {
        let mut value = self.settlement_json(&self.settlement_of(&id.to_string())?)?;
        value["errorInformation"] = json!({
            "errorCode": ApiError::ValidationError.code().to_string(),
            "errorDescription": format!("{} accounts cannot move: see errors", errors.len()),
        });
        value["errors"] = Value::Array(errors);
        Ok(Response::json(409, &value))
    }

    /// A step that is possible in the present state.
    fn step_of(
        &self,
        settlement: &Settlement,
        participant: u32,
        account: &ChangedAccount,
    ) -> Result<AccountStep, OperatorError> {
        let is_meant = |key: &SettlementAccountKey| {
            key.participant == participant
                && self
                    .account_row(participant, key.currency, AccountKind::Position)
                    .is_ok_and(|row| row.is_some_and(|row| row.id == account.id))
        };
        let found = settlement.accounts.iter().find(|(key, _)| is_meant(key));
        let (key, row) = found.ok_or(Refusal::Unknown("settlement account"))?;
        let to = SettlementState::from_name(&account.state).filter(|state| state.is_of_accounts());
        let to = to.ok_or_else(|| {
            OperatorError::Malformed(format!("{} is not a state of an account", account.state))
        })?;
        let state = SettlementState::from_number(row.state).expect("rows are written by the rules");
        check_step(settlement.state(), state, to)?;
        Ok(AccountStep {
            participant,
            name: self.service.directory().name(participant).to_owned(),
            currency: key.currency,
            account: account.id,
            state: account.state.clone(),
            reason: remark(&account.reason)?,
            reference: remark(&account.external_reference)?,
        })
    }
}

fn step_error(participant: u32, account: u32, error: &OperatorError) -> Value {
    json!({
        "participantId": participant, "accountId": account,
        "errorInformation": {
            "errorCode": ApiError::ValidationError.code().to_string(),
            "errorDescription": error.to_string(),
        },
    })
}
