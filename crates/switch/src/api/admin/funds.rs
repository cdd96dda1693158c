//! Liquidity in and out.

use batzen_http::Response;
use batzen_tables::switch::{AccountKind, MovementKey, Movements};
use serde_json::json;

use super::bodies::{self, amount, currency, remark};
use super::{AdminApi, Answer, Wish, failed};
use crate::rules::Refusal;
use crate::rules::movements::MovementState;
use crate::treasury::{Funds, OperatorError};
use crate::values::parse_uuid;

fn malformed(text: &str) -> OperatorError {
    OperatorError::Malformed(text.to_owned())
}

impl AdminApi {
    pub(super) async fn funds(&self, wish: &Wish<'_>) -> Answer {
        let body: bodies::Funds = wish.json()?;
        let key = self.account_by_id(wish.param(0), wish.param(1))?;
        let read = || {
            if key.kind != AccountKind::Settlement as u8 {
                return Err(malformed("funds come to and go from SETTLEMENT accounts alone"));
            }
            if currency(&body.amount.currency)? != key.currency {
                return Err(malformed("the account has another currency"));
            }
            let id = parse_uuid(&body.transfer_id).ok_or_else(|| malformed("transferId is not a UUID"))?;
            Ok(Funds {
                id,
                participant: key.participant,
                currency: key.currency,
                amount: amount(&body.amount.amount)?,
                reason: remark(&body.reason)?,
                reference: remark(&body.external_reference)?,
                operator: wish.operator.to_owned(),
            })
        };
        let funds = read().map_err(|error| failed(&error))?;
        let treasury = self.service.treasury();
        let done = match body.action.as_str() {
            "recordFundsIn" => treasury.funds_in(&funds).await,
            "recordFundsOutPrepareReserve" => treasury.funds_out(&funds).await,
            _ => Err(malformed("the action is recordFundsIn or recordFundsOutPrepareReserve")),
        };
        done.map_err(|error| failed(&error))?;
        self.movement(202, funds.id)
    }

    pub(super) async fn funds_finish(&self, wish: &Wish<'_>) -> Answer {
        let body: bodies::FundsFinish = wish.json()?;
        let id =
            parse_uuid(wish.param(2)).ok_or_else(|| failed(&malformed("the transfer's id is not a UUID")))?;
        let commit = match body.action.as_str() {
            "recordFundsOutCommit" => true,
            "recordFundsOutAbort" => false,
            _ => return Err(failed(&malformed("the action is recordFundsOutCommit or recordFundsOutAbort"))),
        };
        let key = self.account_by_id(wish.param(0), wish.param(1))?;
        let row = self.service.store().get::<Movements>(&MovementKey { id });
        let row = row.map_err(|error| failed(&error.into()))?;
        if !row.is_some_and(|row| row.row.participant == key.participant && row.row.currency == key.currency)
        {
            return Err(failed(&Refusal::Unknown("movement").into()));
        }
        let done = self.service.treasury().finish_funds_out(id, commit).await;
        done.map_err(|error| failed(&error))?;
        self.movement(202, id)
    }

    fn movement(&self, status: u16, id: u128) -> Answer {
        let row = self.service.store().get::<Movements>(&MovementKey { id });
        let row = row.map_err(|error| failed(&error.into()))?;
        let state = row.and_then(|stored| MovementState::from_number(stored.row.state));
        let state = state.map_or("", MovementState::name);
        Ok(Response::json(status, &json!({ "transferId": crate::values::format_uuid(id), "state": state })))
    }
}
