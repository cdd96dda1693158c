//! False statements of exchanges. Each is kept with its request and answer, so that an auditor can judge it.
//!
//! The wallet treats a false answer like no answer: it cannot know whether the exchange did what was asked.
//! The operation stays open, its coins stay as they are, and the same request is sent again later. Nothing is
//! written off.

mod record;

use batzen_protocol::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::http::{HttpRequest, HttpResponse};
use super::state::{Draft, OpId, OpKind, WalletOperation, WalletState};
use super::{Change, CoreError};
use crate::core::error::{Result, bad_input};

pub(crate) use super::id::EvidenceId;
pub use record::*;

/// Most records kept for one exchange. Further false answers are counted in the newest record.
pub(crate) const MAX_RECORDS: usize = 200;
/// Longest reason that is kept, in bytes.
const MAX_REASON_SIZE: usize = 1000;
/// Secret members of requests: they would allow spending coins, or link payments to withdrawals.
const SECRET_MEMBERS: [&str; 4] = ["rms", "transfer_privs", "coin_blind_key_secret", "cs_nonce"];

fn request_record(request: &HttpRequest) -> RequestRecord {
    let body = request.body.as_ref().and_then(|body| serde_json::from_slice(body).ok()).map(withhold);
    RequestRecord { method: request.method.name().to_owned(), url: request.url.clone(), body }
}

fn withhold(value: Value) -> Value {
    match value {
        Value::Object(members) => members
            .into_iter()
            .map(|(name, member)| {
                if SECRET_MEMBERS.contains(&name.as_str()) {
                    (name, "(withheld)".into())
                } else {
                    (name, withhold(member))
                }
            })
            .collect(),
        Value::Array(items) => items.into_iter().map(withhold).collect(),
        other => other,
    }
}

fn answer_record(response: &HttpResponse) -> AnswerRecord {
    let kept = &response.body[..response.body.len().min(MAX_BODY_SIZE)];
    let (text, base32) = match std::str::from_utf8(kept) {
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(batzen_crypto::base32::encode(kept))),
    };
    AnswerRecord {
        status: response.status,
        body: text,
        body_base32: base32,
        body_size: response.body.len() as u64,
        body_sha512: batzen_crypto::hash::sha512(&response.body),
    }
}

/// The beginning of `text`, cut at a character boundary.
fn shorten(text: &str) -> String {
    if text.len() <= MAX_REASON_SIZE {
        return text.to_owned();
    }
    let mut end = MAX_REASON_SIZE;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &text[..end])
}

/// Records a false answer. If the fault is already recorded, only its count grows.
pub(crate) fn record(
    draft: &mut Draft<'_>,
    exchange: &str,
    operation: Option<OpId>,
    request: &HttpRequest,
    response: &HttpResponse,
    reason: &str,
    now: Timestamp,
) -> Result<EvidenceId> {
    let reason = shorten(reason);
    let mut count = 0;
    let mut last = None;
    let mut same = None;
    for item in draft.evidence().filter(|item| item.exchange == exchange) {
        count += 1;
        last = last.max(Some(item.id));
        if item.operation == operation && item.reason == reason && item.settled.is_none() {
            same = Some(item.id);
        }
    }
    if let Some(id) = same.or(last.filter(|_| count >= MAX_RECORDS)) {
        let item = draft.evidence_mut(id)?;
        item.times = item.times.saturating_add(1);
        item.last_seen = now;
        return Ok(id);
    }
    let kind_of = |id: OpId| draft.operation(id).map(|operation| &operation.kind);
    let about = operation.map(kind_of).transpose()?.map(|kind| match kind {
        OpKind::PickUp(record) => kind_of(record.purchase),
        OpKind::Refund(record) => kind_of(record.payment),
        kind => Ok(kind),
    });
    let purchase = match about.transpose()? {
        Some(OpKind::Purchase(record)) => Some(record.proof()),
        _ => None,
    };
    let id = draft.next_evidence_id();
    draft.put_evidence(Evidence {
        id,
        exchange: exchange.to_owned(),
        master_pub: draft.exchange(exchange)?.master_pub,
        operation,
        purchase,
        reason,
        request: request_record(request),
        answer: answer_record(response),
        first_seen: now,
        last_seen: now,
        times: 1,
        settled: None,
    });
    Ok(id)
}

/// The changes that keep a false answer as evidence and pause its operation. Coins and amounts stay as they
/// are; the same request is sent again later.
///
/// # Errors
/// [`CoreError::UnknownOperation`], or if records contradict each other.
pub(crate) fn dispute(
    state: &WalletState,
    id: OpId,
    request: &HttpRequest,
    response: &HttpResponse,
    error: &CoreError,
    now: Timestamp,
) -> Result<(Disputed, Vec<Change>)> {
    let operation = state.operation(id)?;
    let mut draft = Draft::new(state);
    let reason = error.to_string();
    let evidence = record(&mut draft, &operation.exchange, Some(id), request, response, &reason, now)?;
    draft.put_operation(WalletOperation {
        dispute: Some(Dispute::after(operation.dispute.as_ref(), evidence, now)),
        last_error: Some(format!("{reason} (evidence {evidence})")),
        ..operation.clone()
    });
    Ok((Disputed { evidence, reason }, draft.into_changes()))
}

/// The changes that keep a false answer about the exchange itself, such as its list of keys, as evidence.
///
/// # Errors
/// [`CoreError::UnknownExchange`].
pub(crate) fn record_about_exchange(
    state: &WalletState,
    exchange: &str,
    request: &HttpRequest,
    response: &HttpResponse,
    error: &CoreError,
    now: Timestamp,
) -> Result<Vec<Change>> {
    let mut draft = Draft::new(state);
    record(&mut draft, exchange, None, request, response, &error.to_string(), now)?;
    Ok(draft.into_changes())
}

/// Marks evidence as settled, unless another operation is still disputed because of it.
pub(crate) fn settle(
    draft: &mut Draft<'_>,
    evidence: EvidenceId,
    operation: OpId,
    now: Timestamp,
) -> Result<()> {
    let disputed = draft.operations().any(|other| {
        other.id != operation && other.dispute.is_some_and(|dispute| dispute.evidence == evidence)
    });
    if !disputed && draft.evidence().any(|item| item.id == evidence) {
        draft.evidence_mut(evidence)?.settled.get_or_insert(now);
    }
    Ok(())
}

/// The changes that mark all evidence about an exchange's own lists as settled, because it has published
/// correct ones.
///
/// # Errors
/// If records contradict each other.
pub(crate) fn settle_lists(state: &WalletState, exchange: &str, now: Timestamp) -> Result<Vec<Change>> {
    let mut draft = Draft::new(state);
    let is_open =
        |item: &&Evidence| item.exchange == exchange && item.operation.is_none() && item.settled.is_none();
    for id in state.evidence.values().filter(is_open).map(|item| item.id) {
        draft.evidence_mut(id)?.settled = Some(now);
    }
    Ok(draft.into_changes())
}

/// The changes that let every disputed operation send its request again at once.
#[must_use]
pub(crate) fn retry_disputed(state: &WalletState, now: Timestamp) -> Vec<Change> {
    let waits =
        |operation: &&WalletOperation| operation.dispute.is_some_and(|dispute| dispute.retry_at > now);
    state
        .open_operations()
        .filter(waits)
        .map(|operation| {
            let dispute = operation.dispute.map(|dispute| Dispute { retry_at: now, ..dispute });
            Change::Operation(Box::new(WalletOperation { dispute, ..operation.clone() }))
        })
        .collect()
}

/// The changes that record the user's acceptance, for the operations disputed because of `evidence`, that
/// operations took place which the exchange had refused. Their requests are sent again at once.
///
/// # Errors
/// [`CoreError::BadInput`] if no operation is disputed because of it.
pub(crate) fn accept_refused(
    state: &WalletState,
    evidence: EvidenceId,
    now: Timestamp,
) -> Result<Vec<Change>> {
    let mut changes = Vec::new();
    for operation in state.open_operations() {
        let Some(dispute) = operation.dispute.filter(|dispute| dispute.evidence == evidence) else {
            continue;
        };
        let dispute = Some(Dispute { retry_at: now, accept_refused: true, ..dispute });
        changes.push(Change::Operation(Box::new(WalletOperation { dispute, ..operation.clone() })));
    }
    if changes.is_empty() {
        let reason = format!("nothing is disputed because of {evidence}");
        return Err(bad_input("evidence", reason));
    }
    Ok(changes)
}

/// The evidence file for auditors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EvidenceFile<'a> {
    /// Format version: 1.
    pub batzen_wallet_evidence: u32,
    /// Time of writing.
    pub written: Timestamp,
    /// The evidence records.
    pub evidence: Vec<&'a Evidence>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::http::Context;

    #[test]
    fn secrets_stay_out_of_evidence() {
        let body = serde_json::json!({
            "rms": "SECRET", "transfer_privs": ["SECRET", "SECRET"], "rc": "PUBLIC",
            "planchets": [{ "coin_blind_key_secret": "SECRET", "coin_sig": "PUBLIC" }],
        });
        let mut request = HttpRequest::post(Context::Refresh, "http://e/x".to_owned(), &body);
        request.basic_auth = Some(("user".to_owned(), "SECRET".to_owned()));
        let text = serde_json::to_string(&request_record(&request)).expect("has a JSON form");
        assert!(!text.contains("SECRET") && text.matches("PUBLIC").count() == 2, "{text}");
    }

    #[test]
    fn bodies_are_cut_and_their_hash_is_not() {
        let body = vec![b'x'; MAX_BODY_SIZE + 5];
        let record =
            answer_record(&HttpResponse { status: 409, body: body.clone(), ..HttpResponse::default() });
        assert_eq!(record.body.map(|text| text.len()), Some(MAX_BODY_SIZE));
        assert_eq!(
            (record.body_size, record.body_sha512),
            (body.len() as u64, batzen_crypto::hash::sha512(&body))
        );
        let record = answer_record(&HttpResponse { body: vec![0xff, 0], ..HttpResponse::default() });
        assert_eq!((record.body, record.body_base32.as_deref()), (None, Some("ZW00")));
    }
}
