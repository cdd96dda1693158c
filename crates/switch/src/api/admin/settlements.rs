//! Settlements.

use batzen_http::Response;
use batzen_tables::switch::{AccountKind, SettlementAccountKey, Settlements};
use serde::Deserialize;
use serde_json::{Value, json};

use super::bodies::remark;
use super::books::time;
use super::{AdminApi, Answer, Wish, failed};
use crate::rules::Refusal;
use crate::rules::settlements::{SettlementState, windows_of};
use crate::settlement::{Settlement, Step, net};
use crate::treasury::OperatorError;
use crate::values::{currency_text, format_amount, format_signed};

/// Windows in one settlement.
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

impl AdminApi {
    pub(super) fn settlement_of(&self, id: &str) -> Result<Settlement, Response> {
        let id = id.parse().map_err(|_| failed(&Refusal::Unknown("settlement").into()))?;
        Settlement::read(self.service.store(), id).map_err(|error| failed(&error))
    }

    pub(super) async fn settlement_create(&self, wish: &Wish<'_>) -> Answer {
        let body: NewSettlement = wish.json()?;
        let mut windows: Vec<u64> = body.settlement_windows.iter().map(|window| window.id).collect();
        windows.sort_unstable();
        windows.dedup();
        if windows.is_empty() || windows.len() > WINDOWS_MAX {
            return Err(malformed("a settlement has 1 to 1,000 windows"));
        }
        let reason = remark(&body.reason).map_err(|error| failed(&error))?;
        let id = self.service.settle(&body.settlement_model, &reason, &windows).await;
        let id = id.map_err(|error| failed(&error))?;
        tracing::info!(operator = wish.operator, settlement = id, "settlement made");
        self.settlement(&id.to_string())
    }

    pub(super) fn settlements(&self) -> Answer {
        let all = self.service.store().all::<Settlements>().map_err(|error| failed(&error.into()))?;
        let all: Result<Vec<Value>, Response> = all
            .iter()
            .map(|found| self.settlement_json(&self.settlement_of(&found.key.id.to_string())?))
            .collect();
        Ok(Response::json(200, &all?))
    }

    pub(super) fn settlement(&self, id: &str) -> Answer {
        Ok(Response::json(200, &self.settlement_json(&self.settlement_of(id)?)?))
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

    /// Steps of accounts, each answered by itself; or the end of the whole.
    pub(super) async fn settlement_change(&self, wish: &Wish<'_>) -> Answer {
        let body: Change = wish.json()?;
        let settlement = self.settlement_of(wish.param(0))?;
        let id = settlement.id;
        if let Some(state) = &body.state {
            if state != "ABORTED" || !body.participants.is_empty() {
                return Err(malformed("a settlement as a whole can only be ABORTED"));
            }
            let reason = remark(&body.reason).map_err(|error| failed(&error))?;
            self.service.abort_settlement(id, &reason).await.map_err(|error| failed(&error))?;
            tracing::info!(operator = wish.operator, settlement = id, "settlement aborted");
            return self.settlement(wish.param(0));
        }
        let mut errors = Vec::new();
        for participant in &body.participants {
            for account in &participant.accounts {
                if let Err(error) = self.settlement_step(&settlement, participant.id, account).await {
                    errors.push(json!({
                        "participantId": participant.id, "accountId": account.id,
                        "errorInformation": { "errorCode": "3100", "errorDescription": error.to_string() },
                    }));
                }
            }
        }
        tracing::info!(
            operator = wish.operator,
            settlement = id,
            errors = errors.len(),
            "settlement moved on"
        );
        let mut value = self.settlement_json(&self.settlement_of(wish.param(0))?)?;
        if errors.is_empty() {
            return Ok(Response::json(200, &value));
        }
        value["errors"] = Value::Array(errors);
        Ok(Response::json(409, &value))
    }

    async fn settlement_step(
        &self,
        settlement: &Settlement,
        participant: u32,
        account: &ChangedAccount,
    ) -> Result<(), OperatorError> {
        let is_meant = |key: &SettlementAccountKey| {
            key.participant == participant
                && self
                    .account_row(participant, key.currency, AccountKind::Position)
                    .is_ok_and(|row| row.is_some_and(|row| row.id == account.id))
        };
        let found = settlement.accounts.iter().find(|(key, _)| is_meant(key));
        let (key, _) = found.ok_or(Refusal::Unknown("settlement account"))?;
        let to = SettlementState::from_name(&account.state)
            .filter(|state| !matches!(state, SettlementState::Settling | SettlementState::Aborting))
            .ok_or_else(|| {
                OperatorError::Malformed(format!("{} is no state of an account", account.state))
            })?;
        let reason = remark(&account.reason)?;
        let reference = remark(&account.external_reference)?;
        self.service.settlement_step(&Step { key: key.clone(), to, reason, reference }).await
    }
}
