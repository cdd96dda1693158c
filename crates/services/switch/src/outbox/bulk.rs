//! Messages about bulk transfers.

use std::collections::HashMap;

use batzen_protocol::calendar::format_ms;
use batzen_tables::switch::{BodyKey, BodyKind, BodyRow, BulkRow, TransferRow};

use super::render::{Ready, Renderer, error_information};
use crate::errors::ApiError;
use crate::messages::{BulkFulfil, BulkPrepare, BulkResult, BulkState, TransferState};
use crate::rules::bulks;
use crate::rules::state::{TransferStage, history};
use crate::values::{format_hash, format_uuid, parse_uuid};

/// Header fields that belong to a signature of the body.
const SIGNATURE_LINES: [&str; 3] = ["fspiop-signature:", "fspiop-uri:", "fspiop-http-method:"];

impl Renderer<'_> {
    /// The payer's POST with the reserved items: byte for byte if all items were reserved, otherwise without
    /// its signature, which would no longer match.
    pub(super) fn bulk_prepare(&self, id: u128) -> Option<Ready> {
        let bulk = self.rows.bulks.get(&id)?;
        let received = self.rows.bodies.get(&BodyKey::new(id, BodyKind::BulkPrepare))?;
        let mut prepare: BulkPrepare<'_> = serde_json::from_slice(&received.body).ok()?;
        let failed: HashMap<usize, u16> = bulks::failed(bulk).collect();
        let count = prepare.individual_transfers.len();
        let mut place = 0;
        prepare.individual_transfers.retain(|item| {
            let is_recorded = !failed.contains_key(&place);
            place += 1;
            let transfer = parse_uuid(&item.transfer_id).and_then(|id| self.rows.transfers.get(&id));
            is_recorded
                && transfer.is_some_and(|row| history(row).any(|step| step.state == TransferStage::Reserved))
        });
        let (path, special) = ("/bulkTransfers", "BULK_TRANSFER_POST");
        if prepare.individual_transfers.len() == count {
            return self.forward("POST", special, path, received);
        }
        let lines = received.headers.split_inclusive("\r\n");
        let headers =
            lines.filter(|line| !SIGNATURE_LINES.iter().any(|name| line.starts_with(name))).collect();
        let body = serde_json::to_vec(&prepare).ok()?;
        self.forward("POST", special, path, &BodyRow { headers, body })
    }

    /// The state of a bulk transfer, item by item; the payee's error if it was rejected.
    pub(super) fn bulk_state(&self, id: u128) -> Option<Ready> {
        let bulk = self.rows.bulks.get(&id)?;
        let path = format!("/bulkTransfers/{}", format_uuid(id));
        let state = bulks::state_of(bulk);
        if state == BulkState::Rejected {
            let received = self.rows.bodies.get(&BodyKey::new(id, BodyKind::BulkError))?;
            return self.forward("PUT", "BULK_TRANSFER_ERROR", &format!("{path}/error"), received);
        }
        let fulfil = BulkFulfil {
            bulk_transfer_state: state,
            completed_timestamp: (bulk.completed != 0).then(|| format_ms(bulk.completed).into()),
            individual_transfer_results: self.results(bulk),
            extension_list: None,
        };
        self.own("PUT", "BULK_TRANSFER_PUT", &path, &fulfil)
    }

    fn results(&self, bulk: &BulkRow) -> Vec<BulkResult<'static>> {
        let failed: HashMap<usize, u16> = bulks::failed(bulk).collect();
        let of_item = |(place, id): (usize, u128)| {
            let mut result = BulkResult {
                transfer_id: format_uuid(id).into(),
                fulfilment: None,
                error_information: None,
                extension_list: None,
            };
            match (failed.get(&place), self.rows.transfers.get(&id)) {
                (Some(code), _) => {
                    let text = ApiError::from_code(*code).map_or("", ApiError::text);
                    result.error_information = Some(error_information(*code, text));
                }
                (None, Some(row)) => decide(&mut result, row),
                (None, None) => {}
            }
            result
        };
        bulks::items(bulk).enumerate().map(of_item).collect()
    }
}

/// Fills in the decision on an item; an open item has neither fulfilment nor error.
fn decide(result: &mut BulkResult<'_>, row: &TransferRow) {
    match TransferStage::of(row).external() {
        TransferState::Committed => {
            result.fulfilment = row.fulfilment.map(|bytes| format_hash(&bytes).into());
        }
        TransferState::Aborted => {
            result.error_information = Some(error_information(row.error_code, &row.error_text));
        }
        TransferState::Received | TransferState::Reserved => {}
    }
}
