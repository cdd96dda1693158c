//! Changes that operators make. With four eyes they are only proposed here, and approved by another operator
//! ([`super::approvals`]).

use std::sync::Arc;

use batzen_http::Response;
use batzen_tables::switch::{AccountKind, HUB};
use serde_json::{Value, json};

use super::bodies::{self, currency, remark};
use super::{ADMIN, Answer, HUB_NAME, OperatorRequest, Table, failed, operator};
use crate::MAX_BODY_BYTES;
use crate::directory::ENDPOINT_TYPES;
use crate::messages::SWITCH_NAME;
use crate::outbox::wire::split_url;
use crate::rules::admin::FundsOrder;
use crate::rules::{Change, Refusal};
use crate::treasury::OperatorError;

fn malformed(text: &str) -> OperatorError {
    OperatorError::Malformed(text.to_owned())
}

fn is_hub(name: &str) -> bool {
    name.eq_ignore_ascii_case(HUB_NAME)
}

/// Names are 1 to 32 characters that need no escaping in a header or a path.
fn check_name(name: &str) -> Result<(), OperatorError> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    if name.is_empty() || name.len() > 32 || !name.bytes().all(plain) {
        return Err(malformed("a name is 1 to 32 letters, digits, hyphens, dots or underscores"));
    }
    if is_hub(name) || name.eq_ignore_ascii_case(SWITCH_NAME) || name.eq_ignore_ascii_case("limits") {
        return Err(malformed("this name is taken by the hub"));
    }
    Ok(())
}

pub(super) fn routes(table: Table) -> Table {
    table
        .post("/participants", MAX_BODY_BYTES, ADMIN, operator!(participant_create))
        .put("/participants/:name", MAX_BODY_BYTES, ADMIN, operator!(participant_change))
        .post("/participants/:name/endpoints", MAX_BODY_BYTES, ADMIN, operator!(endpoint_set))
        .post(
            "/participants/:name/initialPositionAndLimits",
            MAX_BODY_BYTES,
            ADMIN,
            operator!(initial_limits),
        )
        .put("/participants/:name/limits", MAX_BODY_BYTES, ADMIN, operator!(limit_change))
        .post("/participants/:name/accounts", MAX_BODY_BYTES, ADMIN, operator!(account_create))
        .put("/participants/:name/accounts/:id", MAX_BODY_BYTES, ADMIN, operator!(account_change))
        .post("/settlementModels", MAX_BODY_BYTES, ADMIN, operator!(model_create))
        .put("/settlementModels/:name", MAX_BODY_BYTES, ADMIN, operator!(model_change))
}

impl OperatorRequest<'_> {
    /// Proposes a change, or makes it at once if one operator is enough.
    pub(super) async fn propose(&self, status: u16, change: Change) -> Answer {
        let operator = self.operator;
        if !self.service.config.four_eyes {
            // In a separate task, so that it continues if the client disconnects.
            let (service, order, by) = (Arc::clone(self.service), change.clone(), operator.to_owned());
            let made = tokio::spawn(async move { service.apply_by(&order, &by).await });
            let number = made.await.expect("changes do not panic").map_err(|error| failed(&error))?;
            tracing::info!(operator, ?change, "changed");
            return Ok(Response::json(status, &self.result(&change, number)?));
        }
        let id = self.service.propose(&change, operator).await.map_err(|error| failed(&error))?;
        tracing::info!(operator, approval = id, "change proposed");
        Ok(Response::json(202, &json!({ "approvalId": id, "state": "OPEN" })))
    }

    /// The answer to a change once it is made.
    pub(super) fn result(&self, change: &Change, number: u64) -> Result<Value, Response> {
        match change {
            Change::Accounts { name: Some(name), .. } | Change::Activate { name, .. } => {
                Ok(self.participant_json(name).unwrap_or_else(|_| json!({ "name": name, "id": number })))
            }
            Change::FundsIn(FundsOrder { id, .. })
            | Change::FundsOut(FundsOrder { id, .. })
            | Change::EndFundsOut { id, .. } => self.movement_json(*id),
            Change::CloseWindow { id, .. } => self.window_by_id(*id),
            Change::Settle { .. } | Change::StepSettlement { .. } | Change::AbortSettlement { .. } => {
                self.settlement_json(&self.settlement_of(&number.to_string())?)
            }
            _ => Ok(json!({ "done": true })),
        }
    }

    async fn participant_create(&self) -> Answer {
        let body: bodies::NewParticipant = self.json()?;
        check_name(&body.name).map_err(|error| failed(&error))?;
        let currency = currency(&body.currency).map_err(|error| failed(&error))?;
        self.propose(201, Change::Accounts { name: Some(body.name), currency }).await
    }

    async fn participant_change(&self) -> Answer {
        let body: bodies::Active = self.json()?;
        let name = self.known(self.param("name"))?;
        self.propose(200, Change::Activate { name, active: body.is_active }).await
    }

    /// The name of an existing participant.
    pub(super) fn known(&self, name: &str) -> Result<String, Response> {
        let directory = self.service.directory();
        let entry = directory.by_name(name);
        entry.map(|entry| entry.name.clone()).ok_or_else(|| failed(&Refusal::Unknown("participant").into()))
    }

    async fn endpoint_set(&self) -> Answer {
        let body: bodies::NewEndpoint = self.json()?;
        let name = self.known(self.param("name"))?;
        if !ENDPOINT_TYPES.contains(&body.kind.as_str()) {
            let text = format!("the type is one of {}", ENDPOINT_TYPES.join(", "));
            return Err(failed(&malformed(&text)));
        }
        if body.value.len() > 1024 || split_url(&body.value).is_none() {
            return Err(failed(&malformed("the value is an http:// URL without query")));
        }
        let change = Change::Endpoint { name, endpoint: body.kind, url: body.value };
        self.propose(201, change).await
    }

    async fn initial_limits(&self) -> Answer {
        let body: bodies::InitialLimits = self.json()?;
        let position = body.initial_position.as_ref().map_or(Ok(0), bodies::AmountText::parse);
        if position.map_err(|error| failed(&error))? != 0 {
            return Err(failed(&malformed("initialPosition is 0: positions come from transfers alone")));
        }
        self.limit(201, &body.currency, &body.limit, true).await
    }

    async fn limit_change(&self) -> Answer {
        let body: bodies::LimitChange = self.json()?;
        self.limit(200, &body.currency, &body.limit, false).await
    }

    async fn limit(&self, status: u16, currency_text: &str, limit: &bodies::Limit, initial: bool) -> Answer {
        let name = self.known(self.param("name"))?;
        let read = || {
            if limit.kind != "NET_DEBIT_CAP" {
                return Err(malformed("the type of a limit is NET_DEBIT_CAP"));
            }
            if limit.alarm_percentage.is_some_and(|percentage| percentage > 100) {
                return Err(malformed("alarmPercentage is at most 100"));
            }
            Ok((currency(currency_text)?, limit.value.parse()?))
        };
        let (currency, ndc) = read().map_err(|error| failed(&error))?;
        let alarm_percentage = limit.alarm_percentage;
        let change = Change::Limit { name, currency, ndc, alarm_percentage, initial };
        self.propose(status, change).await
    }

    /// The hub's accounts of a currency are created together, whichever is requested first.
    async fn account_create(&self) -> Answer {
        let body: bodies::NewAccount = self.json()?;
        let currency = currency(&body.currency).map_err(|error| failed(&error))?;
        let name = self.param("name");
        let (owner, kinds) = if is_hub(name) {
            (None, [AccountKind::HubReconciliation, AccountKind::HubMultilateralSettlement])
        } else {
            (Some(self.known(name)?), [AccountKind::Position, AccountKind::Settlement])
        };
        if !kinds.iter().any(|kind| kind.name() == body.kind) {
            return Err(failed(&malformed("this owner has no accounts of this type")));
        }
        if owner.is_none() && self.account_row(HUB, currency, kinds[0])?.is_some() {
            return Ok(Response::json(200, &json!({ "done": true })));
        }
        self.propose(201, Change::Accounts { name: owner, currency }).await
    }

    async fn account_change(&self) -> Answer {
        let body: bodies::Active = self.json()?;
        let name = self.param("name");
        let key = self.account_by_id(name, self.param("id"))?;
        let change = Change::ActivateAccount {
            name: (!is_hub(name)).then(|| name.to_owned()),
            currency: key.currency,
            kind: key.kind,
            active: body.is_active,
        };
        self.propose(200, change).await
    }

    async fn model_create(&self) -> Answer {
        self.set_model(None).await
    }

    async fn model_change(&self) -> Answer {
        self.set_model(Some(self.param("name"))).await
    }

    async fn set_model(&self, name: Option<&str>) -> Answer {
        let body: bodies::Model = self.json()?;
        let read = || {
            let name = name.or(body.name.as_deref()).ok_or_else(|| malformed("the name is missing"))?;
            if name.is_empty() || name.len() > 64 {
                return Err(malformed("names of models have 1 to 64 characters"));
            }
            let delay = body.settlement_delay.as_deref();
            let gross = match (body.settlement_granularity.as_str(), delay) {
                ("GROSS", Some("IMMEDIATE")) => true,
                ("NET", Some("DEFERRED") | None) => false,
                _ => return Err(malformed("models are GROSS and IMMEDIATE, or NET and DEFERRED")),
            };
            let interchange = body.settlement_interchange.as_deref().unwrap_or("MULTILATERAL");
            if !matches!((gross, interchange), (false, "MULTILATERAL") | (true, "BILATERAL" | "MULTILATERAL"))
            {
                return Err(malformed("net models are MULTILATERAL"));
            }
            let types =
                [(&body.ledger_account_type, "POSITION"), (&body.settlement_account_type, "SETTLEMENT")];
            if types.iter().any(|(given, known)| given.as_deref().is_some_and(|given| given != *known)) {
                return Err(malformed("models settle POSITION against SETTLEMENT"));
            }
            Ok(Change::Model {
                name: remark(name)?,
                currency: body.currency.as_deref().map_or(Ok(0), currency)?,
                gross,
                require_liquidity_check: body.require_liquidity_check,
                auto_position_reset: body.auto_position_reset,
                active: body.is_active.unwrap_or(true),
            })
        };
        let change = read().map_err(|error| failed(&error))?;
        self.propose(if name.is_some() { 200 } else { 201 }, change).await
    }
}
