//! Builds HTTP requests for messages of the outbox. They are built at the time of sending, from the rows that
//! they are about.

use std::collections::HashMap;

use batzen_http::http_date;
use batzen_protocol::Timestamp;
use batzen_protocol::calendar::format_ms;
use batzen_store::{Found, Store, StoreError};
use batzen_tables::switch::{
    Bodies, BodyKey, BodyKind, BodyRow, BulkKey, BulkRow, Bulks, Outbox, TransferKey, TransferRow, Transfers,
};

use super::wire::split_url;
use crate::directory::{Entry, Snapshot};
use crate::messages::{
    CONTENT_TYPE, CONTENT_TYPE_BULK, ErrorBody, ErrorInformation, Fulfil, Patch, SWITCH_NAME, TransferState,
};
use crate::rules::state::TransferStage;
use crate::rules::{MessageKind, bulks};
use crate::values::{format_hash, format_uuid};

/// A message ready to be sent.
#[derive(Debug)]
pub(crate) struct Ready {
    /// The destination: host and port.
    pub authority: String,
    /// The whole request.
    pub request: Vec<u8>,
}

/// The rows needed for a window of messages.
pub(super) struct Rows {
    pub(super) bulks: HashMap<u128, BulkRow>,
    pub(super) transfers: HashMap<u128, TransferRow>,
    pub(super) bodies: HashMap<BodyKey, BodyRow>,
}

impl Rows {
    /// Reads them, one query for each kind.
    pub(super) fn read(store: &Store, window: &[Found<Outbox>]) -> Result<Self, StoreError> {
        let (mut bulks, mut transfers, mut bodies) = (Vec::new(), Vec::new(), Vec::new());
        for found in window {
            let id = found.row.id;
            match MessageKind::from_number(found.row.kind) {
                Some(MessageKind::Prepare) => bodies.push(BodyKey::new(id, BodyKind::Prepare)),
                Some(MessageKind::Error) => bodies.push(BodyKey::new(id, BodyKind::Error)),
                Some(MessageKind::Fulfil) => {
                    bodies.push(BodyKey::new(id, BodyKind::Fulfil));
                    transfers.push(TransferKey { id });
                }
                Some(MessageKind::TransferStage | MessageKind::Patch) => transfers.push(TransferKey { id }),
                Some(MessageKind::BulkPrepare) => {
                    bulks.push(BulkKey { id });
                    bodies.push(BodyKey::new(id, BodyKind::BulkPrepare));
                }
                Some(MessageKind::BulkState) => {
                    bulks.push(BulkKey { id });
                    bodies.push(BodyKey::new(id, BodyKind::BulkError));
                }
                Some(MessageKind::SwitchError | MessageKind::BulkSwitchError | MessageKind::Notice)
                | None => {}
            }
        }
        let rows = store.get_many::<Bulks>(&bulks)?;
        let found = bulks.into_iter().zip(rows);
        let bulks: HashMap<u128, BulkRow> = found.filter_map(|(key, row)| Some((key.id, row?.row))).collect();
        transfers.extend(bulks.values().flat_map(bulks::items).map(|id| TransferKey { id }));
        let rows = store.get_many::<Transfers>(&transfers)?;
        let found = transfers.into_iter().zip(rows);
        let transfers = found.filter_map(|(key, row)| Some((key.id, row?.row))).collect();
        let rows = store.get_many::<Bodies>(&bodies)?;
        let bodies = bodies.into_iter().zip(rows).filter_map(|(key, row)| Some((key, row?.row))).collect();
        Ok(Self { bulks, transfers, bodies })
    }
}

/// The state for building one message.
pub(super) struct Renderer<'a> {
    pub rows: &'a Rows,
    pub directory: &'a Snapshot,
    pub to: &'a Entry,
    pub now_ms: u64,
}

/// Code and description of an error.
pub(crate) fn error_information(code: u16, text: &str) -> ErrorInformation<'static> {
    ErrorInformation {
        error_code: format!("{code:04}").into(),
        error_description: text.chars().take(128).collect::<String>().into(),
        extension_list: None,
    }
}

/// The address for a message: the special one, or else the general one.
pub(crate) fn special_or_general<'a>(to: &'a Entry, special: &str) -> Option<&'a str> {
    to.endpoints.get(special).or_else(|| to.endpoints.get("FSPIOP_CALLBACK_URL")).map(String::as_str)
}

impl Renderer<'_> {
    /// The request for a message; `None` if the participant has no address for it.
    pub(super) fn render(&self, message: &Found<Outbox>) -> Option<Ready> {
        let id = message.row.id;
        let body = |kind| self.rows.bodies.get(&BodyKey::new(id, kind));
        match MessageKind::from_number(message.row.kind)? {
            MessageKind::Prepare => {
                let received = body(BodyKind::Prepare)?;
                self.forward("POST", "TRANSFER_POST", "/transfers", received)
            }
            MessageKind::Fulfil => {
                let path = format!("/transfers/{}", format_uuid(id));
                let transfer = self.rows.transfers.get(&id)?;
                match body(BodyKind::Fulfil) {
                    // The payer's outcome is COMMITTED, even if the payee asked for confirmation.
                    Some(received) if !transfer.wants_patch => {
                        self.forward("PUT", "TRANSFER_PUT", &path, received)
                    }
                    _ => self.state(&path, id, transfer),
                }
            }
            MessageKind::Error => {
                let path = format!("/transfers/{}/error", format_uuid(id));
                self.forward("PUT", "TRANSFER_ERROR", &path, body(BodyKind::Error)?)
            }
            MessageKind::SwitchError => {
                let path = format!("/transfers/{}/error", format_uuid(id));
                self.error(&path, "TRANSFER_ERROR", message.row.code, &message.row.text)
            }
            MessageKind::TransferStage => {
                let transfer = self.rows.transfers.get(&id)?;
                self.state(&format!("/transfers/{}", format_uuid(id)), id, transfer)
            }
            MessageKind::Patch => {
                let transfer = self.rows.transfers.get(&id)?;
                let committed = TransferStage::of(transfer).external() == TransferState::Committed;
                let patch = Patch {
                    transfer_state: if committed { TransferState::Committed } else { TransferState::Aborted },
                    completed_timestamp: format_ms(transfer.completed).into(),
                    extension_list: None,
                };
                let path = format!("/transfers/{}", format_uuid(id));
                self.own("PATCH", "TRANSFER_PUT", &path, &patch)
            }
            MessageKind::BulkPrepare => self.bulk_prepare(id),
            MessageKind::BulkState => self.bulk_state(id),
            MessageKind::BulkSwitchError => {
                let path = format!("/bulkTransfers/{}/error", format_uuid(id));
                self.error(&path, "BULK_TRANSFER_ERROR", message.row.code, &message.row.text)
            }
            MessageKind::Notice => self.notice(&message.row.text),
        }
    }

    /// The state of a transfer: with the fulfilment once committed; an error if it was aborted because of
    /// one.
    fn state(&self, path: &str, id: u128, transfer: &TransferRow) -> Option<Ready> {
        let state = TransferStage::of(transfer).external();
        if state == TransferState::Aborted && transfer.error_code != 0 {
            let path = format!("{path}/error");
            return match self.rows.bodies.get(&BodyKey::new(id, BodyKind::Error)) {
                Some(received) => self.forward("PUT", "TRANSFER_ERROR", &path, received),
                None => self.error(&path, "TRANSFER_ERROR", transfer.error_code, &transfer.error_text),
            };
        }
        let committed = state == TransferState::Committed;
        let fulfil = Fulfil {
            fulfilment: transfer.fulfilment.filter(|_| committed).map(|bytes| format_hash(&bytes).into()),
            completed_timestamp: (transfer.completed != 0).then(|| format_ms(transfer.completed).into()),
            transfer_state: state,
            extension_list: None,
        };
        self.own("PUT", "TRANSFER_PUT", path, &fulfil)
    }

    pub(super) fn error(&self, path: &str, special: &str, code: u16, text: &str) -> Option<Ready> {
        let error_information = error_information(code, text);
        self.own("PUT", special, path, &ErrorBody { error_information })
    }

    /// Passes a message on byte for byte.
    pub(super) fn forward(
        &self,
        method: &str,
        special: &str,
        path: &str,
        received: &BodyRow,
    ) -> Option<Ready> {
        self.request(method, special, path, &received.headers, &received.body)
    }

    /// A message written by the switch itself.
    pub(super) fn own(
        &self,
        method: &str,
        special: &str,
        path: &str,
        body: &impl serde::Serialize,
    ) -> Option<Ready> {
        let is_bulk = path.starts_with("/bulkTransfers");
        let headers = self.own_headers(if is_bulk { CONTENT_TYPE_BULK } else { CONTENT_TYPE });
        self.request(method, special, path, &headers, &serde_json::to_vec(body).ok()?)
    }

    pub(super) fn own_headers(&self, content_type: &str) -> String {
        let date = http_date(Timestamp::from_secs(self.now_ms / 1000));
        let to = self.directory.name(self.to.number);
        format!(
            "content-type: {content_type}\r\ndate: {date}\r\nfspiop-source: {SWITCH_NAME}\r\n\
             fspiop-destination: {to}\r\n"
        )
    }

    fn notice(&self, text: &str) -> Option<Ready> {
        let (authority, path) = split_url(self.to.endpoints.get("SWITCH_NOTIFICATION_URL")?)?;
        let headers = self.own_headers("application/json");
        Some(assemble("POST", authority, &format!("{path}/notifications"), &headers, text.as_bytes()))
    }

    pub(super) fn request(
        &self,
        method: &str,
        special: &str,
        path: &str,
        headers: &str,
        body: &[u8],
    ) -> Option<Ready> {
        let url = special_or_general(self.to, &format!("FSPIOP_CALLBACK_URL_{special}"))?;
        let (authority, base) = split_url(url)?;
        Some(assemble(method, authority, &format!("{base}{path}"), headers, body))
    }
}

/// A whole request.
pub(crate) fn assemble(method: &str, authority: String, path: &str, headers: &str, body: &[u8]) -> Ready {
    let mut request = Vec::with_capacity(headers.len() + body.len() + path.len() + 96);
    let head = [method, " ", path, " HTTP/1.1\r\nhost: ", &authority, "\r\n", headers];
    head.iter().for_each(|part| request.extend_from_slice(part.as_bytes()));
    request.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
    request.extend_from_slice(body);
    Ready { authority, request }
}
