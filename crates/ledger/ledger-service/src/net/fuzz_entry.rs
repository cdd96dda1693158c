//! Entry points of the fuzz targets: the parsers of network input. A panic is a bug.

use batzen_ledger::{
    Account, AccountBalance, AccountFilter, ChangeEvent, ChangeFilter, CreateAccountStatus, CreateResult,
    CreateTransferStatus, QueryFilter, Transfer,
};

use crate::net::body::{Record, push_all, read_all, runs_alone};
use crate::net::frame::{self, HEADER_BYTES, Hello, Kind, Parsed};
use crate::net::json::{AccountJson, TransferJson};

/// Decoded bytes must encode to the same bytes.
fn round_trips<R: Record>(body: &[u8]) {
    if let Some(records) = read_all::<R>(body) {
        let mut again = Vec::new();
        push_all(&mut again, &records);
        assert_eq!(again, body);
    }
}

/// Reads a stream of frames to its end or its first error, and each body as every type of record.
pub fn frames(mut data: &[u8]) {
    while let Ok(Parsed::Frame(header, body)) = frame::parse(data) {
        assert_eq!(frame::Header::from_bytes(&header.to_bytes()), Ok(header));
        bodies(body);
        data = &data[HEADER_BYTES + body.len()..];
    }
    bodies(data);
}

fn bodies(body: &[u8]) {
    let _ = Hello::from_bytes(body);
    for kind in Kind::ALL {
        let _ = runs_alone(kind, body);
    }
    round_trips::<Account>(body);
    round_trips::<Transfer>(body);
    round_trips::<u128>(body);
    round_trips::<CreateResult<CreateAccountStatus>>(body);
    round_trips::<CreateResult<CreateTransferStatus>>(body);
    round_trips::<AccountFilter>(body);
    round_trips::<QueryFilter>(body);
    round_trips::<ChangeFilter>(body);
    round_trips::<AccountBalance>(body);
    round_trips::<ChangeEvent>(body);
    if let Ok(json) = serde_json::from_slice::<TransferJson>(body)
        && let Ok(transfer) = Transfer::try_from(&json)
    {
        assert_eq!(Transfer::try_from(&TransferJson::from(&transfer)), Ok(transfer));
    }
    if let Ok(json) = serde_json::from_slice::<AccountJson>(body)
        && let Ok(account) = Account::try_from(&json)
    {
        assert_eq!(Account::try_from(&AccountJson::from(&account)), Ok(account));
    }
}
