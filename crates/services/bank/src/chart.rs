//! The bank's chart of accounts in the ledger: ids, numbers and codes, and the ledger events of an intent.
//! Pure.
//!
//! | ledger account | code | |
//! |---|---|---|
//! | named | 1 | must not be debited beyond what was credited; the headroom granted at its opening is its overdraft |
//! | equity | 2 | pays the sign-up bonuses |
//! | grants | 3 | pays the headroom |
//! | transit | 4 | between the two halves of a transfer from an account to itself; zero after each |
//!
//! The code of a transfer is its [`Origin`] (8: headroom). All transfers of a withdrawal operation have the
//! code of withdrawals, because a posting has the code of the transfer that it posts.

use batzen_crypto::hash::sha512_parts;
use batzen_ledger::{Account, AccountFlags, CreateTransferStatus, Transfer, TransferFlags};
use batzen_protocol::Currency;
use batzen_tables::bank::{BankStateRow, IntentRow, Origin, TransactionKey};

/// Time that the money of a selected withdrawal operation stays reserved, in seconds: a day. A customer who
/// has not confirmed by then has abandoned it and can spend the money again. A later confirmation reserves it
/// again if it is still there.
pub(crate) const RESERVATION_S: u32 = 86_400;

/// Code of the accounts that have names.
pub(crate) const CODE_NAMED: u16 = 1;
/// Code of the account that pays the sign-up bonuses.
pub(crate) const CODE_EQUITY: u16 = 2;
/// Code of the account that pays the headroom.
pub(crate) const CODE_GRANTS: u16 = 3;
/// Code of the account between the halves of a transfer from an account to itself.
pub(crate) const CODE_TRANSIT: u16 = 4;
/// Code of transfers of headroom. The code of other transfers is their [`Origin`].
pub(crate) const CODE_HEADROOM: u16 = 8;

/// Kind of an id: the first byte that is hashed after the bank's identity.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Role {
    Named = 1,
    Own = 2,
    Headroom = 3,
    Movement = 4,
    SecondHalf = 5,
}

/// Computes the ids and codes of one bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chart {
    identity: [u8; 16],
    ledger: u32,
    headroom: u128,
    equity: u128,
    grants: u128,
    transit: u128,
}

/// The opening of a ledger account: first create the account, then the transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// The account.
    pub account: Account,
    /// Its headroom.
    pub headroom: Transfer,
}

/// The ledger's decision on an intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The money was moved, reserved or released, now or earlier.
    Done,
    /// The payer does not have enough.
    Exceeded,
    /// A sum would exceed the ledger's range.
    TooBig,
    /// The reservation has expired.
    Expired,
}

/// An answer that no correct ledger gives to this bank: the ledger holds something else under an id of this
/// bank, or lacks something created earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the ledger answers {0}")]
pub struct LedgerMismatch(pub CreateTransferStatus);

impl Chart {
    /// The chart of the bank with this state.
    pub fn new(state: &BankStateRow, currency: Currency) -> Self {
        let identity = state.identity;
        let own = |code: u16| id(&identity, Role::Own, &[&code.to_be_bytes()]);
        Self {
            identity,
            ledger: ledger_number(currency),
            headroom: state.headroom,
            equity: own(CODE_EQUITY),
            grants: own(CODE_GRANTS),
            transit: own(CODE_TRANSIT),
        }
    }

    /// The bank's identity, which all its ledger accounts carry as user data.
    pub(crate) fn identity(&self) -> u128 {
        u128::from_be_bytes(self.identity)
    }

    /// The number of the currency's ledger.
    pub fn ledger(&self) -> u32 {
        self.ledger
    }

    /// The headroom of every named account.
    pub fn headroom(&self) -> u128 {
        self.headroom
    }

    /// The id of the ledger account with this name.
    pub fn account_id(&self, name: &str) -> u128 {
        account_id(&self.identity, name)
    }

    /// The account that pays the sign-up bonuses.
    pub(crate) fn equity_id(&self) -> u128 {
        self.equity
    }

    /// The bank's own accounts.
    pub fn own_accounts(&self) -> [Account; 3] {
        [(self.equity, CODE_EQUITY), (self.grants, CODE_GRANTS), (self.transit, CODE_TRANSIT)]
            .map(|(id, code)| self.account(id, code, AccountFlags::NONE))
    }

    fn account(&self, id: u128, code: u16, flags: AccountFlags) -> Account {
        let user_data_128 = self.identity();
        Account { id, code, flags, ledger: self.ledger, user_data_128, ..Account::default() }
    }

    /// The opening of the named account.
    pub fn opening(&self, name: &str) -> Opening {
        self.opening_of(self.account_id(name))
    }

    /// The opening of the account with this id.
    pub(crate) fn opening_of(&self, account_id: u128) -> Opening {
        let flags = AccountFlags::DEBITS_MUST_NOT_EXCEED_CREDITS;
        let headroom = Transfer {
            id: id(&self.identity, Role::Headroom, &[&account_id.to_be_bytes()]),
            debit_account_id: self.grants,
            credit_account_id: account_id,
            amount: self.headroom,
            ledger: self.ledger,
            code: CODE_HEADROOM,
            ..Transfer::default()
        };
        Opening { account: self.account(account_id, CODE_NAMED, flags), headroom }
    }

    /// The id of an intent's transfer. Every attempt has its own, because refused transfers use up their ids.
    pub(crate) fn transfer_id(&self, key: &TransactionKey, attempt: u32) -> u128 {
        self.movement_id(Role::Movement, key, attempt)
    }

    fn movement_id(&self, role: Role, key: &TransactionKey, attempt: u32) -> u128 {
        id(&self.identity, role, &[&[key.origin], &attempt.to_be_bytes(), &key.id])
    }

    /// The ledger transfers of an intent: one, or two linked ones if an account pays itself.
    pub fn transfers(&self, key: &TransactionKey, row: &IntentRow) -> Vec<Transfer> {
        let [payer, payee] = [&row.debit_account, &row.credit_account].map(|name| self.account_id(name));
        self.transfers_between(key, row, payer, payee)
    }

    /// The same for known account ids, because computing each takes a hash.
    pub(crate) fn transfers_between(
        &self,
        key: &TransactionKey,
        row: &IntentRow,
        payer: u128,
        payee: u128,
    ) -> Vec<Transfer> {
        let origin = key.origin();
        let amount = row.amount.units();
        let transfer = Transfer {
            id: self.transfer_id(key, row.attempt),
            amount,
            ledger: self.ledger,
            code: code_of(origin, row),
            user_data_128: reference(&key.id),
            ..Transfer::default()
        };
        // Only a reservation's first attempt can have reserved anything, because a selection is made once.
        let reservation = || self.transfer_id(&TransactionKey::new(Origin::Reservation, &key.id), 0);
        let resolve = |flags, amount| Transfer { pending_id: reservation(), flags, amount, ..transfer };
        match origin {
            Origin::Bonus => {
                vec![Transfer { debit_account_id: self.equity, credit_account_id: payee, ..transfer }]
            }
            Origin::Reservation => vec![Transfer {
                debit_account_id: payer,
                credit_account_id: payee,
                flags: TransferFlags::PENDING,
                timeout: RESERVATION_S,
                ..transfer
            }],
            Origin::Release => vec![resolve(TransferFlags::VOID_PENDING_TRANSFER, amount)],
            Origin::Withdrawal if row.is_reserved => {
                vec![resolve(TransferFlags::POST_PENDING_TRANSFER, amount)]
            }
            _ if row.debit_account == row.credit_account => {
                // Credit before debit, so that the limit sees the final balance.
                let account = payer;
                let incoming = Transfer {
                    debit_account_id: self.transit,
                    credit_account_id: account,
                    flags: TransferFlags::LINKED,
                    ..transfer
                };
                let outgoing = Transfer {
                    id: self.movement_id(Role::SecondHalf, key, row.attempt),
                    debit_account_id: account,
                    credit_account_id: self.transit,
                    ..transfer
                };
                vec![incoming, outgoing]
            }
            Origin::Transfer | Origin::Incoming | Origin::Withdrawal | Origin::Payment => {
                vec![Transfer { debit_account_id: payer, credit_account_id: payee, ..transfer }]
            }
        }
    }
}

/// The ledger id of the account with this name, at the bank with this identity.
pub fn account_id(identity: &[u8; 16], name: &str) -> u128 {
    id(identity, Role::Named, &[name.as_bytes()])
}

/// Interprets the statuses of an intent's transfers.
///
/// # Errors
/// [`LedgerMismatch`] if they allow no conclusion.
pub fn verdict(origin: Origin, statuses: &[CreateTransferStatus]) -> Result<Verdict, LedgerMismatch> {
    use CreateTransferStatus as S;
    // If a chain was executed already, the ledger answers the first with exists and the second with a failed
    // chain. If a chain is refused, one of its statuses gives the reason.
    let first = *statuses.first().expect("an intent is at least one transfer");
    let status = match statuses {
        [S::LinkedEventFailed, second] => *second,
        _ => first,
    };
    match status {
        S::Created | S::Exists => Ok(Verdict::Done),
        // Refused earlier, with the answer lost. Ids of this bank's transfers are burnt for one reason only.
        S::ExceedsCredits | S::IdAlreadyFailed => Ok(Verdict::Exceeded),
        S::OverflowsDebitsPending
        | S::OverflowsCreditsPending
        | S::OverflowsDebitsPosted
        | S::OverflowsCreditsPosted
        | S::OverflowsDebits
        | S::OverflowsCredits => Ok(Verdict::TooBig),
        // The client wants it released; it does not matter who released it.
        S::PendingTransferExpired | S::PendingTransferAlreadyVoided if origin == Origin::Release => {
            Ok(Verdict::Done)
        }
        S::PendingTransferExpired if origin == Origin::Withdrawal => Ok(Verdict::Expired),
        strange => Err(LedgerMismatch(strange)),
    }
}

/// The code of an intent's transfer.
fn code_of(origin: Origin, row: &IntentRow) -> u16 {
    let origin = match origin {
        Origin::Reservation | Origin::Release => Origin::Withdrawal,
        // In the flow of an exchange's account, a payment with a reserve key counts like any other credit.
        Origin::Payment if row.reserve_pub.is_some() => Origin::Incoming,
        origin => origin,
    };
    origin as u16
}

/// The first bytes of a key, for people who search for a transfer in the ledger.
fn reference(id: &[u8]) -> u128 {
    let mut bytes = [0; 16];
    let length = id.len().min(16);
    bytes[..length].copy_from_slice(&id[..length]);
    u128::from_be_bytes(bytes)
}

fn id(identity: &[u8; 16], role: Role, parts: &[&[u8]]) -> u128 {
    let mut all: [&[u8]; 6] = [&[]; 6];
    let role = [role as u8];
    all[0] = b"batzen-bank-ledger-id";
    all[1] = identity;
    all[2] = &role;
    all[3..3 + parts.len()].copy_from_slice(parts);
    let hash = sha512_parts(&all);
    let id = u128::from_be_bytes(*hash.as_bytes().first_chunk().expect("64 bytes"));
    assert!(id != 0 && id != u128::MAX, "one hash in 2^127 is no id");
    id
}

/// The ledger of a currency. Up to six capital letters are a number in base 27 (A is 1), so they never
/// collide. The number of another name has the highest bit set, and the rest from its hash.
pub(crate) fn ledger_number(currency: Currency) -> u32 {
    const HASHED: u32 = 1 << 31;
    let name = currency.as_str().as_bytes();
    if name.len() <= 6 && name.iter().all(u8::is_ascii_uppercase) {
        return name.iter().fold(0, |number, letter| number * 27 + u32::from(letter - b'A') + 1);
    }
    let hash = sha512_parts(&[b"batzen-bank-ledger-number", name]);
    HASHED | u32::from_be_bytes(*hash.as_bytes().first_chunk().expect("64 bytes"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn chart(byte: u8) -> Chart {
        let state = BankStateRow {
            currency: "KUDOS".to_owned(),
            next_row_id: 1,
            password_salt: [0; 16],
            identity: [byte; 16],
            headroom: 500,
        };
        Chart::new(&state, "KUDOS".parse().unwrap())
    }

    fn intent(from: &str, to: &str) -> IntentRow {
        IntentRow {
            debit_account: from.to_owned(),
            credit_account: to.to_owned(),
            amount: batzen_protocol::Money::UNIT,
            reserve_pub: None,
            wtid: None,
            exchange_base_url: None,
            text: None,
            attempt: 0,
            is_reserved: false,
            is_open: true,
        }
    }

    #[test]
    fn currencies_of_letters_have_ledgers_of_their_own() {
        let number = |name: &str| ledger_number(name.parse().unwrap());
        assert_eq!((number("A"), number("Z"), number("AA"), number("KUDOS")), (1, 26, 28, 6_262_534));
        let names = ["EUR", "CHF", "KUDOS", "ZZZZZZ", "TESTKUDOS", "kudos", "EUR2"];
        let numbers: HashSet<u32> = names.into_iter().map(number).collect();
        assert_eq!(numbers.len(), names.len());
        assert!(number("ZZZZZZ") < 1 << 31 && number("TESTKUDOS") >= 1 << 31);
    }

    #[test]
    fn ids_are_unique() {
        let mut ids = HashSet::new();
        let mut count = 0;
        let mut take = |id: u128| {
            count += 1;
            assert!(ids.insert(id));
        };
        for chart in [chart(1), chart(2)] {
            chart.own_accounts().iter().for_each(|account| take(account.id));
            for name in ["a", "b", ""] {
                let opening = chart.opening(name);
                take(opening.account.id);
                take(opening.headroom.id);
            }
            for origin in [Origin::Transfer, Origin::Incoming, Origin::Reservation, Origin::Release] {
                for attempt in 0..2 {
                    for id in [[1; 32], [2; 32]] {
                        let key = TransactionKey::new(origin, &id);
                        let row = IntentRow { attempt, ..intent("a", "a") };
                        chart.transfers(&key, &row).iter().for_each(|transfer| take(transfer.id));
                    }
                }
            }
        }
        assert_eq!(ids.len(), count);
    }

    #[test]
    fn reservations_are_posted_or_voided() {
        let chart = chart(1);
        let of = |origin, row: &IntentRow| chart.transfers(&TransactionKey::new(origin, &[7; 32]), row);
        let row = intent("joe", "exchange");
        let pending = of(Origin::Reservation, &row)[0];
        assert!(pending.flags == TransferFlags::PENDING && pending.timeout == RESERVATION_S);
        assert_eq!(pending.debit_account_id, chart.account_id("joe"));
        let reserved = IntentRow { is_reserved: true, attempt: 3, ..row.clone() };
        let post = of(Origin::Withdrawal, &reserved)[0];
        let void = of(Origin::Release, &reserved)[0];
        assert_eq!((post.pending_id, void.pending_id), (pending.id, pending.id));
        assert_eq!((post.code, void.code), (pending.code, pending.code));
        let alone = of(Origin::Withdrawal, &row)[0];
        assert!(alone.pending_id == 0 && alone.flags == TransferFlags::NONE && alone.id != post.id);
    }

    #[test]
    fn verdicts_of_chains() {
        use CreateTransferStatus as S;
        let of = |statuses: &[S]| verdict(Origin::Transfer, statuses);
        assert_eq!(of(&[S::Created, S::Created]), Ok(Verdict::Done));
        assert_eq!(of(&[S::Exists, S::LinkedEventFailed]), Ok(Verdict::Done));
        assert_eq!(of(&[S::LinkedEventFailed, S::ExceedsCredits]), Ok(Verdict::Exceeded));
        assert_eq!(of(&[S::LinkedEventFailed, S::IdAlreadyFailed]), Ok(Verdict::Exceeded));
        assert_eq!(of(&[S::OverflowsDebits, S::LinkedEventFailed]), Ok(Verdict::TooBig));
        assert_eq!(of(&[S::ExistsWithDifferentAmount]), Err(LedgerMismatch(S::ExistsWithDifferentAmount)));
        assert_eq!(of(&[S::PendingTransferExpired]), Err(LedgerMismatch(S::PendingTransferExpired)));
        assert_eq!(verdict(Origin::Withdrawal, &[S::PendingTransferExpired]), Ok(Verdict::Expired));
        assert_eq!(verdict(Origin::Release, &[S::PendingTransferAlreadyVoided]), Ok(Verdict::Done));
    }
}
