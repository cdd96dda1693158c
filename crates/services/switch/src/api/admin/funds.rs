//! Liquidity in and out.

use batzen_http::Response;
use batzen_tables::switch::{AccountKind, MovementKey, MovementRow, Movements};
use serde_json::{Value, json};

use super::bodies::{self, amount, currency, remark};
use super::{ADMIN, Answer, OperatorRequest, Table, failed, operator};
use crate::MAX_BODY_BYTES;
use crate::rules::admin::FundsOrder;
use crate::rules::movements::{MovementKind, MovementState};
use crate::rules::{Change, Refusal};
use crate::treasury::OperatorError;
use crate::values::{format_uuid, parse_uuid};

fn malformed(text: &str) -> OperatorError {
    OperatorError::Malformed(text.to_owned())
}

fn conflict(text: &str) -> Response {
    failed(&Refusal::Conflict(text.to_owned()).into())
}

pub(super) fn routes(table: Table) -> Table {
    table.post("/participants/:name/accounts/:id", MAX_BODY_BYTES, ADMIN, operator!(funds)).put(
        "/participants/:name/accounts/:id/transfers/:transfer",
        MAX_BODY_BYTES,
        ADMIN,
        operator!(funds_finish),
    )
}

impl OperatorRequest<'_> {
    async fn funds(&self) -> Answer {
        let body: bodies::Funds = self.json()?;
        let key = self.account_by_id(self.param("name"), self.param("id"))?;
        let name = self.known(self.param("name"))?;
        let read = || {
            if key.kind != AccountKind::Settlement as u8 {
                return Err(malformed("funds come to and go from SETTLEMENT accounts alone"));
            }
            if currency(&body.amount.currency)? != key.currency {
                return Err(malformed("the account has another currency"));
            }
            let id = parse_uuid(&body.transfer_id).ok_or_else(|| malformed("transferId is not a UUID"))?;
            Ok(FundsOrder {
                id,
                name,
                currency: key.currency,
                amount: amount(&body.amount.amount)?,
                reason: remark(&body.reason)?,
                reference: remark(&body.external_reference)?,
            })
        };
        let order = read().map_err(|error| failed(&error))?;
        let kind = match body.action.as_str() {
            "recordFundsIn" => MovementKind::FundsIn,
            "recordFundsOutPrepareReserve" => MovementKind::FundsOut,
            _ => {
                let text = "the action is recordFundsIn or recordFundsOutPrepareReserve";
                return Err(failed(&malformed(text)));
            }
        };
        if self.service.config.four_eyes
            && let Some(known) = self.movement_row(order.id)?
        {
            let is_same = known.kind == kind as u8
                && (known.participant, known.currency) == (key.participant, key.currency)
                && (known.amount, &known.reference) == (order.amount, &order.reference);
            return if is_same {
                Ok(Response::json(202, &self.movement_json(order.id)?))
            } else {
                Err(conflict("another movement has this transferId"))
            };
        }
        let change =
            if kind == MovementKind::FundsIn { Change::FundsIn(order) } else { Change::FundsOut(order) };
        self.propose(202, change).await
    }

    async fn funds_finish(&self) -> Answer {
        let body: bodies::FundsFinish = self.json()?;
        let id = parse_uuid(self.param("transfer"))
            .ok_or_else(|| failed(&malformed("the transfer's id is not a UUID")))?;
        let commit = match body.action.as_str() {
            "recordFundsOutCommit" => true,
            "recordFundsOutAbort" => false,
            _ => return Err(failed(&malformed("the action is recordFundsOutCommit or recordFundsOutAbort"))),
        };
        let reason = remark(&body.reason).map_err(|error| failed(&error))?;
        let key = self.account_by_id(self.param("name"), self.param("id"))?;
        let row = self.movement_row(id)?;
        let row = row.filter(|row| row.participant == key.participant && row.currency == key.currency);
        let row = row.ok_or_else(|| failed(&Refusal::Unknown("movement").into()))?;
        if row.kind != MovementKind::FundsOut as u8 {
            return Err(conflict("only funds out are committed or aborted"));
        }
        let done = if commit { MovementState::Done } else { MovementState::Aborted };
        let going = if commit { MovementState::Committing } else { MovementState::Aborting };
        match MovementState::from_number(row.state) {
            Some(state) if state == done => return Ok(Response::json(202, &self.movement_json(id)?)),
            Some(state) if state == MovementState::Reserved || state == going => {}
            state => {
                let state = state.map_or("", MovementState::name);
                return Err(conflict(&format!("the movement is {state}: only RESERVED ones are ended")));
            }
        }
        let name = self.known(self.param("name"))?;
        let change =
            Change::EndFundsOut { name, currency: key.currency, id, amount: row.amount, commit, reason };
        self.propose(202, change).await
    }

    fn movement_row(&self, id: u128) -> Result<Option<MovementRow>, Response> {
        let stored = self.service.store().get::<Movements>(&MovementKey { id });
        Ok(stored.map_err(|error| failed(&error.into()))?.map(|stored| stored.row))
    }

    pub(super) fn movement_json(&self, id: u128) -> Result<Value, Response> {
        let state = self.movement_row(id)?.and_then(|row| MovementState::from_number(row.state));
        let state = state.map_or("", MovementState::name);
        Ok(json!({ "transferId": format_uuid(id), "state": state }))
    }
}
