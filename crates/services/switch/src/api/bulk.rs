//! Bulk transfers at the participants' interface.

use batzen_engine::SubmitError;
use batzen_http::Request;
use batzen_service::endpoint;
use batzen_tables::switch::{BulkKey, Bulks};
use sha2::{Digest, Sha256};

use super::Table;
use super::participant::{
    Answer, Refuse, check_condition, check_extensions, check_headers, check_packet, error_information,
    error_message, money, parse, party, received, run, time, uuid,
};
use crate::MAX_BODY_BYTES;
use crate::errors::ApiError;
use crate::messages::{self, BulkState};
use crate::rules::bulks::{self, ITEMS_MAX};
use crate::rules::transfers::Received;
use crate::rules::{BulkError, BulkFulfil, BulkGet, BulkPrepare, ItemResult, Prepare};
use crate::service::Service;
use crate::values::{is_hash_text, parse_hash};

const RESOURCE: &str = "bulkTransfers";

pub(super) fn routes(table: Table) -> Table {
    table
        .post("/bulkTransfers", MAX_BODY_BYTES, "bulk-prepare", endpoint!(prepare))
        .put("/bulkTransfers/:id", MAX_BODY_BYTES, "bulk-fulfil", endpoint!(fulfil))
        .put("/bulkTransfers/:id/error", MAX_BODY_BYTES, "bulk-error", endpoint!(error))
        .get("/bulkTransfers/:id", "get", endpoint!(get))
}

fn too_many() -> Refuse {
    Refuse::new(400, ApiError::TooManyElements, "a bulk transfer has at most 1,000 items")
}

async fn prepare(service: &Service, request: &Request) -> Answer {
    let directory = service.directory();
    let parties = check_headers(request, RESOURCE, &directory)?;
    let body: messages::BulkPrepare<'_> = parse(&request.body)?;
    let id = uuid(&body.bulk_transfer_id, "bulkTransferId")?;
    uuid(&body.bulk_quote_id, "bulkQuoteId")?;
    check_extensions(body.extension_list.as_ref())?;
    let count = body.individual_transfers.len();
    if count == 0 {
        return Err(Refuse::new(400, ApiError::MissingElement, "a bulk transfer has at least one item"));
    }
    if count > ITEMS_MAX {
        return Err(too_many());
    }
    let (payer, payee) = (party(&directory, &body.payer_fsp)?, party(&directory, &body.payee_fsp)?);
    let expiration = time(&body.expiration, "expiration")?;
    let source = parties.source.number;
    let mut items = Vec::with_capacity(count);
    for item in &body.individual_transfers {
        let (currency, amount) = money(&item.transfer_amount)?;
        check_packet(&item.ilp_packet)?;
        check_condition(&item.condition)?;
        check_extensions(item.extension_list.as_ref())?;
        // Used only to detect repetitions of the whole bulk, which has a hash of its own.
        let hash = Sha256::digest(item.transfer_id.as_bytes()).into();
        items.push(Prepare {
            id: uuid(&item.transfer_id, "transferId")?,
            source,
            payer: payer.clone(),
            payee: payee.clone(),
            currency,
            amount,
            condition: parse_hash(&item.condition),
            expiration,
            message: Received { hash, ..Received::default() },
            bulk: Some(id),
        });
    }
    let message = received(request)?;
    let prepare = BulkPrepare { id, source, payer, payee, expiration, items, message };
    run(service, 202, prepare).await
}

async fn fulfil(service: &Service, request: &Request) -> Answer {
    let parties = check_headers(request, RESOURCE, &service.directory())?;
    let id = uuid(request.param("id"), "the bulk transfer's id")?;
    let body: messages::BulkFulfil<'_> = parse(&request.body)?;
    if !matches!(body.bulk_transfer_state, BulkState::Completed | BulkState::Accepted) {
        return Err(Refuse::malformed("bulkTransferState is COMPLETED or ACCEPTED here"));
    }
    if let Some(completed) = &body.completed_timestamp {
        time(completed, "completedTimestamp")?;
    }
    check_extensions(body.extension_list.as_ref())?;
    if body.individual_transfer_results.len() > ITEMS_MAX {
        return Err(too_many());
    }
    let mut results = Vec::with_capacity(body.individual_transfer_results.len());
    for result in body.individual_transfer_results {
        check_extensions(result.extension_list.as_ref())?;
        let outcome = match (result.fulfilment, result.error_information) {
            (Some(fulfilment), None) if is_hash_text(&fulfilment) => {
                ItemResult::Fulfilled(parse_hash(&fulfilment))
            }
            (Some(_), None) => {
                return Err(Refuse::malformed("a fulfilment is not 43 characters of base64url"));
            }
            (None, Some(error)) => {
                let (code, text) = error_information(error)?;
                ItemResult::Refused(code, text)
            }
            _ => return Err(Refuse::malformed("a result has either fulfilment or errorInformation")),
        };
        results.push((uuid(&result.transfer_id, "transferId")?, outcome));
    }
    let (source, destination) = (parties.source.number, parties.destination_number());
    let fulfil = BulkFulfil { id, source, destination, results, message: received(request)? };
    run(service, 200, fulfil).await
}

async fn error(service: &Service, request: &Request) -> Answer {
    let parties = check_headers(request, RESOURCE, &service.directory())?;
    let error = error_message(request, uuid(request.param("id"), "the bulk transfer's id")?, &parties)?;
    let stored = service.store().get::<Bulks>(&BulkKey { id: error.id });
    let stored = stored.map_err(|error| SubmitError::Store(error.into()))?;
    let items = stored.map(|found| bulks::items(&found.row).collect()).unwrap_or_default();
    run(service, 200, BulkError { error, items }).await
}

async fn get(service: &Service, request: &Request) -> Answer {
    let id = uuid(request.param("id"), "the bulk transfer's id")?;
    let source = check_headers(request, RESOURCE, &service.directory())?.source.number;
    run(service, 202, BulkGet { id, source }).await
}
