//! What the fuzz targets run: parsers of what comes over the wire. A panic is a finding.

use batzen_ledger::{
    Account, AccountBalance, AccountFilter, ChangeEvent, ChangeFilter, CreateAccountStatus, CreateResult,
    CreateTransferStatus, QueryFilter, Transfer,
};

use crate::body::{Record, push_all, read_all, runs_alone};
use crate::frame::{self, HEADER_BYTES, Hello, Kind, Parsed};
use crate::json::{AccountJson, TransferJson};

/// What is read must be written as the same bytes.
fn leads_back<R: Record>(body: &[u8]) {
    if let Some(records) = read_all::<R>(body) {
        let mut again = Vec::new();
        push_all(&mut again, &records);
        assert_eq!(again, body);
    }
}

/// A stream of frames, read to its end or its first mistake; each body as every kind of record.
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
    leads_back::<Account>(body);
    leads_back::<Transfer>(body);
    leads_back::<u128>(body);
    leads_back::<CreateResult<CreateAccountStatus>>(body);
    leads_back::<CreateResult<CreateTransferStatus>>(body);
    leads_back::<AccountFilter>(body);
    leads_back::<QueryFilter>(body);
    leads_back::<ChangeFilter>(body);
    leads_back::<AccountBalance>(body);
    leads_back::<ChangeEvent>(body);
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
