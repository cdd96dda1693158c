//! Bodies: events, ids, filters and results as fixed-size records, little endian.
//!
//! Pure. Every function that reads refuses bytes that it would not have written.

use batzen_ledger::record::RECORD_BYTES;
use batzen_ledger::{
    Account, AccountBalance, AccountFilter, AccountFlags, ChangeEvent, ChangeFilter, ChangeKind,
    CreateAccountStatus, CreateResult, CreateTransferStatus, QueryFilter, Transfer, TransferFlags,
};

use crate::net::frame::{BODY_BYTES_MAX, Kind};

/// Size of an id, in bytes.
pub(crate) const ID_BYTES: usize = 16;

/// Size of a result of a create request, in bytes.
pub(crate) const RESULT_BYTES: usize = 16;

/// Size of a filter, in bytes.
pub(crate) const FILTER_BYTES: usize = 64;

/// Size of a change event, in bytes: 16 of its own, a transfer, two accounts.
pub(crate) const EVENT_BYTES: usize = 16 + 3 * RECORD_BYTES;

/// The most change events in one answer.
pub(crate) const EVENTS_PER_ANSWER_MAX: usize = BODY_BYTES_MAX / EVENT_BYTES;

const FLAG_DEBITS: u32 = 1;
const FLAG_CREDITS: u32 = 2;
const FLAG_REVERSED: u32 = 4;

/// A value of fixed size on the wire.
pub trait Record: Sized {
    /// The size, in bytes.
    const BYTES: usize;

    /// Appends it.
    fn push(&self, out: &mut Vec<u8>);

    /// Reads it from exactly [`Record::BYTES`] bytes; `None` if they are malformed.
    fn read(bytes: &[u8]) -> Option<Self>;
}

/// Appends records.
pub fn push_all<R: Record>(out: &mut Vec<u8>, records: &[R]) {
    out.reserve(records.len() * R::BYTES);
    for record in records {
        record.push(out);
    }
}

/// All records of a body; `None` if it is malformed.
#[must_use]
pub fn read_all<R: Record>(body: &[u8]) -> Option<Vec<R>> {
    let mut out = Vec::with_capacity(body.len() / R::BYTES);
    read_into(body, &mut out)?;
    Some(out)
}

/// Appends all records of a body to `out`. If the body is malformed, returns `None` and leaves `out`
/// unchanged.
pub(crate) fn read_into<R: Record>(body: &[u8], out: &mut Vec<R>) -> Option<()> {
    let before = out.len();
    let chunks = body.chunks_exact(R::BYTES);
    let is_whole = chunks.remainder().is_empty();
    for chunk in chunks {
        let Some(record) = R::read(chunk).filter(|_| is_whole) else {
            out.truncate(before);
            return None;
        };
        out.push(record);
    }
    is_whole.then_some(())
}

/// The single record of a body; `None` if it is malformed.
#[must_use]
pub fn read_one<R: Record>(body: &[u8]) -> Option<R> {
    (body.len() == R::BYTES).then(|| R::read(body))?
}

/// Returns whether a create request must be executed alone. A chain that its last event leaves open must not
/// extend into another caller's events, and the first event of a batch decides whether all of them are
/// imported.
#[must_use]
pub fn runs_alone(kind: Kind, body: &[u8]) -> bool {
    // The flags have the same offset in both records, and `linked` the same bit in both flags.
    let flags = |record: &[u8]| u16::from_le_bytes([record[118], record[119]]);
    let imported = match kind {
        Kind::CreateAccounts => AccountFlags::IMPORTED.0,
        Kind::CreateTransfers => TransferFlags::IMPORTED.0,
        _ => return true,
    };
    let records = body.chunks_exact(RECORD_BYTES);
    records.clone().next_back().is_none_or(|last| flags(last) & TransferFlags::LINKED.0 != 0)
        || records.into_iter().any(|record| flags(record) & imported != 0)
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk::<N>().expect("a record is as long as its fields");
        self.0 = rest;
        *field
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn u128(&mut self) -> u128 {
        u128::from_le_bytes(self.take())
    }

    /// `None` unless the rest is 0.
    fn ends(&self) -> Option<()> {
        self.0.iter().all(|byte| *byte == 0).then_some(())
    }
}

macro_rules! whole_record {
    ($record:ident) => {
        impl Record for $record {
            const BYTES: usize = RECORD_BYTES;

            fn push(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_bytes());
            }

            fn read(bytes: &[u8]) -> Option<Self> {
                bytes.try_into().ok().map(Self::from_bytes)
            }
        }
    };
}

whole_record!(Account);
whole_record!(Transfer);

impl Record for u128 {
    const BYTES: usize = ID_BYTES;

    fn push(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self::from_le_bytes)
    }
}

macro_rules! result_record {
    ($status:ident) => {
        impl Record for CreateResult<$status> {
            const BYTES: usize = RESULT_BYTES;

            fn push(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.timestamp.to_le_bytes());
                out.extend_from_slice(&self.status.number().to_le_bytes());
                out.extend_from_slice(&[0; 4]);
            }

            fn read(bytes: &[u8]) -> Option<Self> {
                let mut fields = Fields(bytes);
                let timestamp = fields.u64();
                let status = $status::from_number(fields.u32())?;
                fields.ends()?;
                Some(Self { timestamp, status })
            }
        }
    };
}

result_record!(CreateAccountStatus);
result_record!(CreateTransferStatus);

/// Appends zeros until there are `size` bytes after `from`.
fn pad(out: &mut Vec<u8>, from: usize, size: usize) {
    debug_assert!(out.len() <= from + size);
    out.resize(from + size, 0);
}

impl Record for AccountFilter {
    const BYTES: usize = FILTER_BYTES + ID_BYTES;

    fn push(&self, out: &mut Vec<u8>) {
        let from = out.len();
        out.extend_from_slice(&self.account_id.to_le_bytes());
        out.extend_from_slice(&self.user_data_128.to_le_bytes());
        out.extend_from_slice(&self.user_data_64.to_le_bytes());
        out.extend_from_slice(&self.timestamp_min.to_le_bytes());
        out.extend_from_slice(&self.timestamp_max.to_le_bytes());
        out.extend_from_slice(&self.user_data_32.to_le_bytes());
        out.extend_from_slice(&self.limit.to_le_bytes());
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        let flags = flag(self.debits, FLAG_DEBITS)
            | flag(self.credits, FLAG_CREDITS)
            | flag(self.reversed, FLAG_REVERSED);
        out.extend_from_slice(&flags.to_le_bytes());
        out.extend_from_slice(&self.code.to_le_bytes());
        pad(out, from, Self::BYTES);
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let (account_id, user_data_128, user_data_64) = (fields.u128(), fields.u128(), fields.u64());
        let (timestamp_min, timestamp_max) = (fields.u64(), fields.u64());
        let (user_data_32, limit, flags, code) = (fields.u32(), fields.u32(), fields.u32(), fields.u16());
        fields.ends()?;
        (flags & !(FLAG_DEBITS | FLAG_CREDITS | FLAG_REVERSED) == 0).then_some(Self {
            account_id,
            user_data_128,
            user_data_64,
            user_data_32,
            code,
            timestamp_min,
            timestamp_max,
            limit,
            debits: flags & FLAG_DEBITS != 0,
            credits: flags & FLAG_CREDITS != 0,
            reversed: flags & FLAG_REVERSED != 0,
        })
    }
}

impl Record for QueryFilter {
    const BYTES: usize = FILTER_BYTES;

    fn push(&self, out: &mut Vec<u8>) {
        let from = out.len();
        out.extend_from_slice(&self.user_data_128.to_le_bytes());
        out.extend_from_slice(&self.user_data_64.to_le_bytes());
        out.extend_from_slice(&self.timestamp_min.to_le_bytes());
        out.extend_from_slice(&self.timestamp_max.to_le_bytes());
        out.extend_from_slice(&self.user_data_32.to_le_bytes());
        out.extend_from_slice(&self.limit.to_le_bytes());
        out.extend_from_slice(&(if self.reversed { FLAG_REVERSED } else { 0 }).to_le_bytes());
        out.extend_from_slice(&self.ledger.to_le_bytes());
        out.extend_from_slice(&self.code.to_le_bytes());
        pad(out, from, Self::BYTES);
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let (user_data_128, user_data_64) = (fields.u128(), fields.u64());
        let (timestamp_min, timestamp_max) = (fields.u64(), fields.u64());
        let (user_data_32, limit, flags) = (fields.u32(), fields.u32(), fields.u32());
        let (ledger, code) = (fields.u32(), fields.u16());
        fields.ends()?;
        (flags & !FLAG_REVERSED == 0).then_some(Self {
            user_data_128,
            user_data_64,
            user_data_32,
            ledger,
            code,
            timestamp_min,
            timestamp_max,
            limit,
            reversed: flags != 0,
        })
    }
}

/// A record of integers, in this order on the wire, and zeros up to its size.
macro_rules! padded_record {
    ($record:ident, $bytes:ident, $($field:ident: $integer:ident),*) => {
        impl Record for $record {
            const BYTES: usize = $bytes;

            fn push(&self, out: &mut Vec<u8>) {
                let from = out.len();
                $(out.extend_from_slice(&self.$field.to_le_bytes());)*
                pad(out, from, Self::BYTES);
            }

            fn read(bytes: &[u8]) -> Option<Self> {
                let mut fields = Fields(bytes);
                let out = Self { $($field: fields.$integer(),)* };
                fields.ends()?;
                Some(out)
            }
        }
    };
}

padded_record!(ChangeFilter, FILTER_BYTES, timestamp_min: u64, timestamp_max: u64, limit: u32);
padded_record!(
    AccountBalance,
    RECORD_BYTES,
    debits_pending: u128,
    debits_posted: u128,
    credits_pending: u128,
    credits_posted: u128,
    timestamp: u64
);

impl Record for ChangeEvent {
    const BYTES: usize = EVENT_BYTES;

    fn push(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.timestamp.to_le_bytes());
        out.extend_from_slice(&u64::from(self.kind as u8).to_le_bytes());
        out.extend_from_slice(&self.transfer.to_bytes());
        out.extend_from_slice(&self.debit_account.to_bytes());
        out.extend_from_slice(&self.credit_account.to_bytes());
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let timestamp = fields.u64();
        let kind = match fields.u64() {
            0 => ChangeKind::SinglePhase,
            1 => ChangeKind::TwoPhasePending,
            2 => ChangeKind::TwoPhasePosted,
            3 => ChangeKind::TwoPhaseVoided,
            4 => ChangeKind::TwoPhaseExpired,
            _ => return None,
        };
        Some(Self {
            timestamp,
            kind,
            transfer: Transfer::from_bytes(&fields.take()),
            debit_account: Account::from_bytes(&fields.take()),
            credit_account: Account::from_bytes(&fields.take()),
        })
    }
}
