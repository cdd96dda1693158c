//! The encoding of records: 60 to 90 bytes per transfer.
//!
//! A block holds records of one kind, accounts or everything else, so that the accounts that movements refer
//! to by number are known before the block is read. Numbers have variable length (seven bits per byte, the
//! lowest first). Times and ids are stored as differences to the previous record. A mask says which fields
//! are omitted because they are zero or have their usual value. The encoding avoids zero bytes, because a
//! column of bytes has to escape them.

use batzen_ledger::machine::{Balances, LogRecord, Movement, Side, kind_of};
use batzen_ledger::{Account, AccountFlags, ChangeKind, Transfer, TransferFlags};

/// The first byte of a block: the version of the encoding, and the kind of its records.
const ACCOUNTS: u8 = 0x11;
const MOVEMENTS: u8 = 0x12;

/// The most records in a block.
pub const BLOCK_RECORDS_MAX: usize = 64;

/// An account without its balances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// See [`Account`].
    pub id: u128,
    /// See [`Account`].
    pub user_data_128: u128,
    /// See [`Account`].
    pub user_data_64: u64,
    /// See [`Account`].
    pub timestamp: u64,
    /// See [`Account`].
    pub user_data_32: u32,
    /// See [`Account`].
    pub ledger: u32,
    /// See [`Account`].
    pub code: u16,
    /// The flags that the account was created with.
    pub flags: AccountFlags,
}

impl Identity {
    /// The identity of an account.
    #[must_use]
    pub const fn of(account: &Account) -> Self {
        let Account { id, user_data_128, user_data_64, user_data_32, ledger, code, flags, timestamp, .. } =
            *account;
        Self { id, user_data_128, user_data_64, timestamp, user_data_32, ledger, code, flags }
    }

    /// The account, with balances of zero.
    #[must_use]
    pub fn account(&self) -> Account {
        let Self { id, user_data_128, user_data_64, timestamp, user_data_32, ledger, code, flags } = *self;
        Account {
            id,
            user_data_128,
            user_data_64,
            user_data_32,
            ledger,
            code,
            flags,
            timestamp,
            ..Account::default()
        }
    }
}

/// Why bytes are not a valid block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at} of a block of the log")]
pub struct CodecError {
    /// The problem.
    pub(crate) what: &'static str,
    /// The position in the block, in bytes.
    pub(crate) at: usize,
}

/// Bits of a movement's mask.
mod bit {
    pub(crate) const ID_RAW: u32 = 1;
    pub(crate) const PENDING_ID_RAW: u32 = 1 << 1;
    pub(crate) const USER_DATA_128: u32 = 1 << 2;
    pub(crate) const USER_DATA_64: u32 = 1 << 3;
    pub(crate) const USER_DATA_32: u32 = 1 << 4;
    pub(super) const TIMEOUT: u32 = 1 << 5;
    pub(super) const LEDGER: u32 = 1 << 6;
    pub(crate) const CODE: u32 = 1 << 7;
    pub(super) const FLAGS: u32 = 1 << 8;
    pub(crate) const DEBIT_CLOSED: u32 = 1 << 9;
    pub(crate) const CREDIT_CLOSED: u32 = 1 << 10;
    /// The first of eight bits that mark the non-zero balances.
    pub(crate) const BALANCES: u32 = 11;
}

const BURNT: u8 = 6;
const BURNT_RAW: u8 = 7;

/// The values that the next record is encoded relative to.
#[derive(Clone, Copy, Default)]
struct Context {
    timestamp: u64,
    id: u128,
    ledger: u32,
    code: u16,
}

/// Returns whether a record belongs in a block of accounts.
#[must_use]
pub const fn is_account(record: &LogRecord) -> bool {
    matches!(record, LogRecord::Account(_))
}

/// Encodes consecutive records of one kind. `first` is the number of the first record.
///
/// # Panics
/// When there are none, more than [`BLOCK_RECORDS_MAX`], or both kinds.
pub fn encode(first: u64, records: &[LogRecord], out: &mut Vec<u8>) {
    assert!((1..=BLOCK_RECORDS_MAX).contains(&records.len()), "a block has 1 to {BLOCK_RECORDS_MAX} records");
    let accounts = is_account(&records[0]);
    out.push(if accounts { ACCOUNTS } else { MOVEMENTS });
    let mut context = Context::default();
    for (number, record) in (first..).zip(records) {
        assert_eq!(is_account(record), accounts, "a block has records of one kind");
        match record {
            LogRecord::Account(account) => {
                encode_account(account, context, out);
                context = Context { timestamp: account.timestamp, id: account.id, ..context };
            }
            LogRecord::Movement(movement) => encode_movement(number, movement, &mut context, out),
            LogRecord::Burnt { id, timestamp } => {
                let difference = small_difference(context.id, *id);
                out.push(if difference.is_some() { BURNT } else { BURNT_RAW });
                put(zigzag(context.timestamp, *timestamp), out);
                put_id(difference, *id, out);
                context = Context { timestamp: *timestamp, id: *id, ..context };
            }
        }
    }
}

/// A new account has no balances.
fn encode_account(account: &Account, context: Context, out: &mut Vec<u8>) {
    let Identity { id, user_data_128, user_data_64, timestamp, user_data_32, ledger, code, flags } =
        Identity::of(account);
    let difference = small_difference(context.id, id);
    let mut mask = 0;
    let mut note = |condition: bool, bit| mask |= if condition { bit } else { 0 };
    note(difference.is_none(), bit::ID_RAW);
    note(user_data_128 != 0, bit::USER_DATA_128);
    note(user_data_64 != 0, bit::USER_DATA_64);
    note(user_data_32 != 0, bit::USER_DATA_32);
    // Plus one, because a zero byte takes two bytes.
    put_u64(u64::from(mask) + 1, out);
    put(zigzag(context.timestamp, timestamp), out);
    put_id(difference, id, out);
    put_u64(ledger.into(), out);
    put_u64(code.into(), out);
    put_u64(u64::from(flags.0) + 1, out);
    if user_data_128 != 0 {
        put(user_data_128, out);
    }
    for value in [user_data_64, user_data_32.into()] {
        if value != 0 {
            put_u64(value, out);
        }
    }
}

fn encode_movement(number: u64, movement: &Movement, context: &mut Context, out: &mut Vec<u8>) {
    let Movement { kind, timestamp, transfer, debit, credit } = movement;
    let mut mask = 0;
    let mut note = |condition: bool, bit| mask |= if condition { bit } else { 0 };
    let id = small_difference(context.id, transfer.id);
    let pending_id = small_difference(transfer.id, transfer.pending_id);
    let usual = usual_flags(*kind);
    let ends_pending = matches!(kind, ChangeKind::TwoPhasePosted | ChangeKind::TwoPhaseVoided);
    note(id.is_none(), bit::ID_RAW);
    note(ends_pending && pending_id.is_none(), bit::PENDING_ID_RAW);
    note(transfer.user_data_128 != 0, bit::USER_DATA_128);
    note(transfer.user_data_64 != 0, bit::USER_DATA_64);
    note(transfer.user_data_32 != 0, bit::USER_DATA_32);
    note(transfer.timeout != 0, bit::TIMEOUT);
    note(transfer.ledger != context.ledger, bit::LEDGER);
    note(transfer.code != context.code, bit::CODE);
    note(transfer.flags != usual, bit::FLAGS);
    note(debit.flags.contains(AccountFlags::CLOSED), bit::DEBIT_CLOSED);
    note(credit.flags.contains(AccountFlags::CLOSED), bit::CREDIT_CLOSED);
    let balances = [debit.balances, credit.balances].map(words).into_iter().flatten();
    for (at, balance) in balances.clone().enumerate() {
        note(balance != 0, 1 << (bit::BALANCES as usize + at));
    }
    out.push(*kind as u8 + 1);
    put_u64(mask.into(), out);
    put(zigzag(context.timestamp, *timestamp), out);
    put_id(id, transfer.id, out);
    put(transfer.amount, out);
    for side in [debit, credit] {
        put_u64(u64::from(side.account) + 1, out);
        // 1 is the record before this one. 0, which is impossible, means that there was no earlier movement.
        put_u64(if side.previous == 0 { 0 } else { number + 1 - side.previous }, out);
    }
    for balance in balances.filter(|balance| *balance != 0) {
        put(balance, out);
    }
    if ends_pending {
        put_id(pending_id, transfer.pending_id, out);
    } else if *kind == ChangeKind::TwoPhaseExpired {
        put_u64(timestamp - transfer.timestamp, out);
    }
    if transfer.user_data_128 != 0 {
        put(transfer.user_data_128, out);
    }
    for value in [transfer.user_data_64, transfer.user_data_32.into(), transfer.timeout.into()] {
        if value != 0 {
            put_u64(value, out);
        }
    }
    if transfer.ledger != context.ledger {
        put_u64(transfer.ledger.into(), out);
    }
    if transfer.code != context.code {
        put_u64(transfer.code.into(), out);
    }
    if transfer.flags != usual {
        put_u64(u64::from(transfer.flags.0) + 1, out);
    }
    *context =
        Context { timestamp: *timestamp, id: transfer.id, ledger: transfer.ledger, code: transfer.code };
}

const fn usual_flags(kind: ChangeKind) -> TransferFlags {
    match kind {
        ChangeKind::SinglePhase => TransferFlags::NONE,
        ChangeKind::TwoPhasePending | ChangeKind::TwoPhaseExpired => TransferFlags::PENDING,
        ChangeKind::TwoPhasePosted => TransferFlags::POST_PENDING_TRANSFER,
        ChangeKind::TwoPhaseVoided => TransferFlags::VOID_PENDING_TRANSFER,
    }
}

const fn words(balances: Balances) -> [u128; 4] {
    [balances.debits_pending, balances.debits_posted, balances.credits_pending, balances.credits_posted]
}

pub(crate) fn put(mut value: u128, out: &mut Vec<u8>) {
    while value > u128::from(u64::MAX) {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    put_u64(u64::try_from(value).expect("the loop made it small"), out);
}

#[inline]
pub(crate) fn put_u64(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push((value & 0x7f) as u8);
}

/// `to - from` as a number that is small if the difference is small, whatever its sign. Plus one, because a
/// zero byte takes two bytes.
fn zigzag(from: u64, to: u64) -> u128 {
    let (size, sign) = if to >= from { (to - from, 0) } else { (from - to, 1) };
    (u128::from(size) << 1 | sign) + 1
}

/// The difference of two ids, if it is shorter than the id.
fn small_difference(from: u128, to: u128) -> Option<u64> {
    let (size, sign) = if to >= from { (to - from, 0) } else { (from - to, 1) };
    let size = u64::try_from(size).ok().filter(|size| *size < 1 << 56)?;
    Some((size << 1 | sign) + 1)
}

fn put_id(difference: Option<u64>, id: u128, out: &mut Vec<u8>) {
    match difference {
        Some(difference) => put_u64(difference, out),
        None => out.extend_from_slice(&id.to_le_bytes()),
    }
}

/// Returns whether a block holds accounts.
///
/// # Errors
/// When it has an unknown version.
pub(crate) fn holds_accounts(block: &[u8]) -> Result<bool, CodecError> {
    match block.first() {
        Some(&ACCOUNTS) => Ok(true),
        Some(&MOVEMENTS) => Ok(false),
        _ => Err(CodecError { what: "an unknown version", at: 0 }),
    }
}

/// Decodes a block. `first` is the number of its first record, `identities` are those of all accounts created
/// before.
///
/// # Errors
/// When the bytes are not a valid block.
pub fn decode(
    first: u64,
    block: &[u8],
    identities: &[Identity],
    mut visit: impl FnMut(LogRecord),
) -> Result<(), CodecError> {
    let accounts = holds_accounts(block)?;
    let mut input = Input { bytes: block, at: 1 };
    let mut context = Context::default();
    let mut number = first;
    while input.at < block.len() {
        visit(if accounts {
            LogRecord::Account(input.account(&mut context)?)
        } else {
            input.record(number, identities, &mut context)?
        });
        number += 1;
    }
    Ok(())
}

/// Reads numbers off bytes.
pub(crate) struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Input<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(crate) const fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    pub(crate) fn error(&self, what: &'static str) -> CodecError {
        CodecError { what, at: self.at }
    }

    pub(crate) fn byte(&mut self) -> Result<u8, CodecError> {
        let byte = *self.bytes.get(self.at).ok_or_else(|| self.error("the end"))?;
        self.at += 1;
        Ok(byte)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        let bytes = self.bytes[self.at..].first_chunk::<N>().ok_or_else(|| self.error("the end"))?;
        self.at += N;
        Ok(*bytes)
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> Result<u64, CodecError> {
        let mut value = 0;
        let mut shift = 0;
        loop {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift >= 64 || bits << shift >> shift != bits {
                return Err(self.error("a number beyond 64 bits"));
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
            shift += 7;
        }
    }

    pub(crate) fn u128(&mut self) -> Result<u128, CodecError> {
        let mut value = 0;
        let mut shift = 0;
        loop {
            let byte = self.byte()?;
            let bits = u128::from(byte & 0x7f);
            if shift >= 128 || bits << shift >> shift != bits {
                return Err(self.error("a number beyond 128 bits"));
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
            shift += 7;
        }
    }

    pub(crate) fn u32(&mut self) -> Result<u32, CodecError> {
        u32::try_from(self.u64()?).map_err(|_| self.error("a number beyond 32 bits"))
    }

    pub(crate) fn u16(&mut self) -> Result<u16, CodecError> {
        u16::try_from(self.u64()?).map_err(|_| self.error("a number beyond 16 bits"))
    }

    /// A number written plus one.
    fn above_zero(&mut self) -> Result<u64, CodecError> {
        self.u64()?.checked_sub(1).ok_or_else(|| self.error("a zero"))
    }

    fn timestamp(&mut self, from: u64) -> Result<u64, CodecError> {
        let difference = self.u128()?.checked_sub(1).ok_or_else(|| self.error("a zero"))?;
        let size = u64::try_from(difference >> 1).map_err(|_| self.error("a time out of range"))?;
        let to = if difference & 1 == 0 { from.checked_add(size) } else { from.checked_sub(size) };
        to.ok_or_else(|| self.error("a time out of range"))
    }

    fn id(&mut self, raw: bool, from: u128) -> Result<u128, CodecError> {
        if raw {
            return Ok(u128::from_le_bytes(self.array()?));
        }
        let difference = self.above_zero()?;
        let size = u128::from(difference >> 1);
        let id = if difference & 1 == 0 { from.checked_add(size) } else { from.checked_sub(size) };
        id.ok_or_else(|| self.error("an id out of range"))
    }

    fn account(&mut self, context: &mut Context) -> Result<Account, CodecError> {
        let mask = u32::try_from(self.above_zero()?).map_err(|_| self.error("an unknown mask"))?;
        let has = |bit: u32| mask & bit != 0;
        let timestamp = self.timestamp(context.timestamp)?;
        let id = self.id(has(bit::ID_RAW), context.id)?;
        let (ledger, code) = (self.u32()?, self.u16()?);
        let flags = u16::try_from(self.above_zero()?).map_err(|_| self.error("flags out of range"))?;
        *context = Context { timestamp, id, ..*context };
        Ok(Account {
            id,
            user_data_128: if has(bit::USER_DATA_128) { self.u128()? } else { 0 },
            user_data_64: if has(bit::USER_DATA_64) { self.u64()? } else { 0 },
            user_data_32: if has(bit::USER_DATA_32) { self.u32()? } else { 0 },
            ledger,
            code,
            flags: AccountFlags(flags),
            timestamp,
            ..Account::default()
        })
    }

    fn record(
        &mut self,
        number: u64,
        identities: &[Identity],
        context: &mut Context,
    ) -> Result<LogRecord, CodecError> {
        let kind = match self.byte()? {
            1 => ChangeKind::SinglePhase,
            2 => ChangeKind::TwoPhasePending,
            3 => ChangeKind::TwoPhasePosted,
            4 => ChangeKind::TwoPhaseVoided,
            5 => ChangeKind::TwoPhaseExpired,
            tag @ (BURNT | BURNT_RAW) => {
                let timestamp = self.timestamp(context.timestamp)?;
                let id = self.id(tag == BURNT_RAW, context.id)?;
                *context = Context { timestamp, id, ..*context };
                return Ok(LogRecord::Burnt { id, timestamp });
            }
            _ => return Err(self.error("an unknown kind of record")),
        };
        let mask = self.u32()?;
        let has = |bit: u32| mask & bit != 0;
        let timestamp = self.timestamp(context.timestamp)?;
        let id = self.id(has(bit::ID_RAW), context.id)?;
        let amount = self.u128()?;
        let mut sides =
            [Side { account: 0, flags: AccountFlags::NONE, balances: Balances::default(), previous: 0 }; 2];
        let mut ids = [0; 2];
        let closed = [has(bit::DEBIT_CLOSED), has(bit::CREDIT_CLOSED)];
        for ((side, id), closed) in sides.iter_mut().zip(&mut ids).zip(closed) {
            side.account =
                u32::try_from(self.above_zero()?).map_err(|_| self.error("an account out of range"))?;
            let identity = usize::try_from(side.account).ok().and_then(|at| identities.get(at));
            let identity = identity.ok_or_else(|| self.error("an account that does not exist"))?;
            *id = identity.id;
            side.flags = identity.flags.without(AccountFlags::CLOSED);
            if closed {
                side.flags = side.flags | AccountFlags::CLOSED;
            }
            side.previous = match self.u64()? {
                0 => 0,
                back => (number + 1).checked_sub(back).ok_or_else(|| self.error("a link out of range"))?,
            };
        }
        for (at, side) in sides.iter_mut().enumerate() {
            let mut word = |bit: u32| if has(1 << bit) { self.u128() } else { Ok(0) };
            let bit = bit::BALANCES + if at == 0 { 0 } else { 4 };
            side.balances = Balances {
                debits_pending: word(bit)?,
                debits_posted: word(bit + 1)?,
                credits_pending: word(bit + 2)?,
                credits_posted: word(bit + 3)?,
            };
        }
        let (mut pending_id, mut created) = (0, timestamp);
        match kind {
            ChangeKind::TwoPhasePosted | ChangeKind::TwoPhaseVoided => {
                pending_id = self.id(has(bit::PENDING_ID_RAW), id)?;
            }
            ChangeKind::TwoPhaseExpired => {
                let age = self.u64()?;
                created = timestamp.checked_sub(age).ok_or_else(|| self.error("a time out of range"))?;
            }
            ChangeKind::SinglePhase | ChangeKind::TwoPhasePending => {}
        }
        let transfer = Transfer {
            id,
            debit_account_id: ids[0],
            credit_account_id: ids[1],
            amount,
            pending_id,
            user_data_128: if has(bit::USER_DATA_128) { self.u128()? } else { 0 },
            user_data_64: if has(bit::USER_DATA_64) { self.u64()? } else { 0 },
            user_data_32: if has(bit::USER_DATA_32) { self.u32()? } else { 0 },
            timeout: if has(bit::TIMEOUT) { self.u32()? } else { 0 },
            ledger: if has(bit::LEDGER) { self.u32()? } else { context.ledger },
            code: if has(bit::CODE) { self.u16()? } else { context.code },
            flags: if has(bit::FLAGS) {
                let flags = self.above_zero()?;
                TransferFlags(u16::try_from(flags).map_err(|_| self.error("flags out of range"))?)
            } else {
                usual_flags(kind)
            },
            timestamp: created,
        };
        if kind != ChangeKind::TwoPhaseExpired && kind != kind_of(transfer.flags) {
            return Err(self.error("flags of another kind"));
        }
        *context = Context { timestamp, id, ledger: transfer.ledger, code: transfer.code };
        let [debit, credit] = sides;
        Ok(LogRecord::Movement(Movement { kind, timestamp, transfer, debit, credit }))
    }
}

#[cfg(test)]
mod tests;
