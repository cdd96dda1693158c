//! Requirements on every ledger backend, as a test: the worked examples of the specification (1.10) and
//! reads, through the interface alone.
//!
//! The ledger need not be empty: all ids begin at a base that the caller chooses and has not used before.
//! Every example panics on the first difference.

use std::time::Duration;

use crate::{
    AMOUNT_MAX, Account, AccountBalance, AccountFilter, AccountFlags as A, BATCH_EVENTS_MAX, ChangeEvent,
    ChangeFilter, ChangeKind, CreateAccountStatus, CreateTransferStatus as S, Ledger, LedgerError,
    QueryFilter, Transfer, TransferFlags as T,
};

/// The ledger under test.
pub(crate) struct Subject<'a> {
    ledger: &'a dyn Ledger,
    base: u128,
}

/// Account A of the examples: debits must not exceed credits.
const ALICE: u128 = 1;
/// Account B: no limit.
const BOB: u128 = 2;
/// The bank H: no limit.
const BANK: u128 = 3;
/// Account C: like A, without funds.
const CAROL: u128 = 4;

/// Runs all examples. `base` is the first id: at least 2^20 ids from there must be unused. `wait` waits until
/// the ledger's clock has advanced by the given time.
///
/// # Panics
/// If the ledger behaves differently.
pub async fn check(ledger: &dyn Ledger, base: u128, wait: impl AsyncFn(Duration)) {
    assert!(base > 0, "0 is no id");
    let subject = |example: u128| Subject { ledger, base: base + (example << 16) };
    subject(0).limits_and_posting(&wait).await;
    subject(1).chains().await;
    subject(2).expiry(&wait).await;
    subject(3).balancing().await;
    subject(4).closing().await;
    subject(5).full_batch().await;
    subject(6).reads().await;
    subject(7).accounts().await;
    subject(8).voiding().await;
}

impl Subject<'_> {
    fn id(&self, id: u128) -> u128 {
        self.base + id
    }

    /// Transfers of one ledger number per example, so that sums can be told apart.
    fn ledger(&self) -> u32 {
        u32::try_from(self.base % 1_000_003).expect("small") + 1
    }

    fn transfer(&self, id: u128, debit: u128, credit: u128, amount: u128) -> Transfer {
        Transfer {
            id: self.id(id),
            debit_account_id: self.id(debit),
            credit_account_id: self.id(credit),
            amount,
            ledger: self.ledger(),
            code: 7,
            ..Transfer::default()
        }
    }

    fn post(&self, id: u128, pending: u128, amount: u128) -> Transfer {
        let (id, pending_id) = (self.id(id), self.id(pending));
        Transfer { id, pending_id, amount, flags: T::POST_PENDING_TRANSFER, ..Transfer::default() }
    }

    fn void(&self, id: u128, pending: u128) -> Transfer {
        let (id, pending_id) = (self.id(id), self.id(pending));
        Transfer { id, pending_id, flags: T::VOID_PENDING_TRANSFER, ..Transfer::default() }
    }

    async fn open_accounts(&self) {
        let account = |id, flags| Account {
            id: self.id(id),
            ledger: self.ledger(),
            code: 1,
            flags,
            ..Account::default()
        };
        let limited = A::DEBITS_MUST_NOT_EXCEED_CREDITS;
        let accounts = vec![
            account(ALICE, limited | A::HISTORY),
            account(BOB, A::NONE),
            account(BANK, A::NONE),
            account(CAROL, limited),
        ];
        let results = self.ledger.create_accounts(accounts).await.expect("accounts are created");
        for result in &results {
            assert_eq!(result.status, CreateAccountStatus::Created);
        }
        assert!(results.windows(2).all(|pair| pair[0].timestamp + 1 == pair[1].timestamp));
    }

    async fn send(&self, transfers: Vec<Transfer>) -> Vec<S> {
        let results = self.ledger.create_transfers(transfers).await.expect("the ledger answers");
        results.into_iter().map(|result| result.status).collect()
    }

    async fn send_one(&self, transfer: Transfer) -> S {
        let statuses = self.send(vec![transfer]).await;
        assert_eq!(statuses.len(), 1, "one result an event");
        statuses[0]
    }

    /// Debits pending and posted, credits pending and posted.
    async fn balances(&self, account: u128) -> [u128; 4] {
        let found = self.account(account).await;
        [found.debits_pending, found.debits_posted, found.credits_pending, found.credits_posted]
    }

    async fn account(&self, account: u128) -> Account {
        let found = self.ledger.lookup_accounts(vec![self.id(account)]).await.expect("the ledger answers");
        assert_eq!(found.len(), 1, "the account is found");
        found[0]
    }

    /// The event stream; `None` if the ledger's client does not support it.
    async fn change_events(&self, filter: ChangeFilter) -> Option<Vec<ChangeEvent>> {
        match self.ledger.get_change_events(filter).await {
            Err(LedgerError::Refused(_)) => None,
            events => Some(events.expect("the ledger answers")),
        }
    }

    /// Over the accounts of the example, debits equal credits.
    async fn assert_balanced(&self) {
        let ids = [ALICE, BOB, BANK, CAROL].map(|id| self.id(id)).to_vec();
        let found = self.ledger.lookup_accounts(ids).await.expect("the ledger answers");
        let sum = |of: fn(&Account) -> u128| found.iter().map(of).sum::<u128>();
        assert_eq!(sum(|a| a.debits_pending), sum(|a| a.credits_pending), "pending sums");
        assert_eq!(sum(|a| a.debits_posted), sum(|a| a.credits_posted), "posted sums");
    }

    /// Examples 1 to 3: limits, posting, burnt ids.
    async fn limits_and_posting(&self, wait: &impl AsyncFn(Duration)) {
        self.open_accounts().await;
        assert_eq!(self.send_one(self.transfer(10, BANK, ALICE, 100)).await, S::Created);
        assert_eq!(self.balances(ALICE).await, [0, 0, 0, 100]);
        let pending = Transfer { flags: T::PENDING, ..self.transfer(1, ALICE, BOB, 70) };
        assert_eq!(self.send_one(pending).await, S::Created);
        assert_eq!(self.balances(ALICE).await, [70, 0, 0, 100]);
        assert_eq!(self.balances(BOB).await, [0, 0, 70, 0]);
        assert_eq!(self.send_one(self.transfer(2, ALICE, BOB, 40)).await, S::ExceedsCredits);
        self.assert_balanced().await;

        assert_eq!(self.send_one(self.post(3, 1, 71)).await, S::ExceedsPendingTransferAmount);
        assert_eq!(self.send_one(self.post(3, 1, 50)).await, S::Created);
        assert_eq!(self.balances(ALICE).await, [0, 50, 0, 100]);
        assert_eq!(self.balances(BOB).await, [0, 0, 0, 50]);
        assert_eq!(self.send_one(self.post(4, 1, 50)).await, S::PendingTransferAlreadyPosted);
        assert_eq!(self.send_one(self.post(3, 1, 50)).await, S::Exists);
        assert_eq!(self.send_one(self.post(3, 1, AMOUNT_MAX)).await, S::ExistsWithDifferentAmount);
        assert_eq!(self.send_one(pending).await, S::Exists);
        let different = Transfer { user_data_32: 1, ..pending };
        assert_eq!(self.send_one(different).await, S::ExistsWithDifferentUserData32);
        self.assert_balanced().await;

        assert_eq!(self.send_one(self.transfer(11, BANK, ALICE, 1000)).await, S::Created);
        wait(Duration::from_millis(1)).await;
        assert_eq!(self.send_one(self.transfer(2, ALICE, BOB, 40)).await, S::IdAlreadyFailed);
        assert_eq!(self.send_one(self.transfer(5, ALICE, BOB, 40)).await, S::Created);
        assert_eq!(self.send_one(self.post(12, 2, 1)).await, S::PendingTransferNotFound);
        assert_eq!(self.send_one(self.post(13, 5, 1)).await, S::PendingTransferNotPending);
        self.assert_balanced().await;
    }

    /// Examples 4 and 5: chains.
    async fn chains(&self) {
        self.open_accounts().await;
        assert_eq!(self.send_one(self.transfer(10, BANK, ALICE, 100)).await, S::Created);
        let linked = |transfer| Transfer { flags: T::LINKED, ..transfer };
        let (first, second, third) = (
            linked(self.transfer(1, ALICE, BOB, 10)),
            linked(self.transfer(2, CAROL, BANK, 5)),
            self.transfer(3, ALICE, BOB, 1),
        );
        let before = (self.balances(ALICE).await, self.balances(BOB).await);
        let failed = S::LinkedEventFailed;
        assert_eq!(self.send(vec![first, second, third]).await, [failed, S::ExceedsCredits, failed]);
        assert_eq!((self.balances(ALICE).await, self.balances(BOB).await), before);
        let alone = [self.transfer(1, ALICE, BOB, 10), self.transfer(2, CAROL, BANK, 5), third];
        assert_eq!(self.send(alone.to_vec()).await, [S::Created, S::IdAlreadyFailed, S::Created]);

        let open = vec![linked(self.transfer(4, ALICE, BOB, 1)), linked(self.transfer(5, ALICE, BOB, 1))];
        assert_eq!(self.send(open).await, [failed, S::LinkedEventChainOpen]);
        // Members see the effects of earlier ones. Separate chains do not affect each other.
        let batch = vec![
            linked(self.transfer(6, BANK, CAROL, 5)),
            self.transfer(7, CAROL, BOB, 5),
            linked(self.transfer(8, BANK, CAROL, 5)),
            self.transfer(9, CAROL, BOB, 6),
            self.transfer(11, ALICE, BOB, 1),
        ];
        let statuses = self.send(batch).await;
        assert_eq!(statuses, [S::Created, S::Created, failed, S::ExceedsCredits, S::Created]);
        assert_eq!(self.balances(CAROL).await, [0, 5, 0, 5]);
        self.assert_balanced().await;
    }

    /// Example 6: expiry.
    async fn expiry(&self, wait: &impl AsyncFn(Duration)) {
        self.open_accounts().await;
        assert_eq!(self.send_one(self.transfer(10, BANK, ALICE, 100)).await, S::Created);
        let pending = Transfer { flags: T::PENDING, timeout: 1, ..self.transfer(1, ALICE, BOB, 70) };
        let results = self.ledger.create_transfers(vec![pending]).await.expect("the ledger answers");
        assert_eq!(results[0].status, S::Created);
        let created = results[0].timestamp;
        wait(Duration::from_secs(2)).await;
        // The release happens soon, without a request.
        let mut tries = 0;
        while self.balances(ALICE).await != [0, 0, 0, 100] {
            tries += 1;
            assert!(tries < 200, "an expired transfer is released");
            wait(Duration::from_millis(50)).await;
        }
        assert_eq!(self.balances(BOB).await, [0; 4]);
        assert_eq!(self.send_one(self.post(2, 1, AMOUNT_MAX)).await, S::PendingTransferExpired);
        assert_eq!(self.send_one(self.void(3, 1)).await, S::PendingTransferExpired);
        assert_eq!(self.send_one(pending).await, S::Exists);
        let filter = ChangeFilter { timestamp_min: created, timestamp_max: 0, limit: 8 };
        if let Some(events) = self.change_events(filter).await {
            let kinds: Vec<ChangeKind> = events.iter().map(|event| event.kind).collect();
            assert_eq!(kinds, [ChangeKind::TwoPhasePending, ChangeKind::TwoPhaseExpired]);
            assert_eq!(events[1].transfer, events[0].transfer, "an expiry shows what it releases");
            assert!(events[1].timestamp > created + crate::NS_PER_S, "and never comes early");
            assert_eq!(events[0].debit_account.debits_pending, 70);
            assert_eq!(events[1].debit_account.debits_pending, 0);
        }
        self.assert_balanced().await;
    }

    /// Example 7: balancing transfers.
    async fn balancing(&self) {
        self.open_accounts().await;
        assert_eq!(self.send_one(self.transfer(10, BANK, ALICE, 7)).await, S::Created);
        let balancing =
            |amount| Transfer { flags: T::BALANCING_DEBIT, ..self.transfer(1, ALICE, BOB, amount) };
        assert_eq!(self.send_one(balancing(AMOUNT_MAX)).await, S::Created);
        let stored = self.ledger.lookup_transfers(vec![self.id(1)]).await.expect("the ledger answers");
        assert_eq!(stored[0].amount, 7);
        assert_eq!(self.send_one(balancing(7)).await, S::Exists);
        assert_eq!(self.send_one(balancing(8)).await, S::Exists);
        assert_eq!(self.send_one(balancing(6)).await, S::ExistsWithDifferentAmount);
        let both = T::BALANCING_DEBIT | T::BALANCING_CREDIT;
        let nothing = Transfer { flags: both, ..self.transfer(2, ALICE, BOB, AMOUNT_MAX) };
        assert_eq!(self.send_one(nothing).await, S::Created);
        // The bank's net debt is the amount debited.
        let credit = Transfer { flags: T::BALANCING_CREDIT, ..self.transfer(3, BOB, BANK, AMOUNT_MAX) };
        assert_eq!(self.send_one(credit).await, S::Created);
        assert_eq!(self.balances(BANK).await, [0, 7, 0, 7]);
        self.assert_balanced().await;
    }

    /// Example 8: closing accounts.
    async fn closing(&self) {
        self.open_accounts().await;
        let closing = T::PENDING | T::CLOSING_DEBIT;
        let pending = Transfer { flags: closing, ..self.transfer(1, ALICE, BOB, 0) };
        assert_eq!(self.send_one(pending).await, S::Created);
        assert!(self.account(ALICE).await.flags.contains(A::CLOSED));
        assert_eq!(self.send_one(self.transfer(2, ALICE, BOB, 1)).await, S::DebitAccountAlreadyClosed);
        assert_eq!(self.send_one(self.transfer(3, BOB, ALICE, 1)).await, S::CreditAccountAlreadyClosed);
        assert_eq!(self.send_one(self.post(4, 1, AMOUNT_MAX)).await, S::DebitAccountAlreadyClosed);
        assert_eq!(self.send_one(self.void(5, 1)).await, S::Created);
        assert!(!self.account(ALICE).await.flags.contains(A::CLOSED));
        assert_eq!(self.send_one(self.transfer(6, BOB, ALICE, 1)).await, S::Created);
        assert_eq!(self.send_one(self.void(7, 1)).await, S::PendingTransferAlreadyVoided);
        self.assert_balanced().await;
    }

    /// Example 9: a full batch, and one above the limit.
    async fn full_batch(&self) {
        self.open_accounts().await;
        let batch: Vec<Transfer> =
            (0..BATCH_EVENTS_MAX as u128).map(|at| self.transfer(100 + at, BANK, BOB, at)).collect();
        let results = self.ledger.create_transfers(batch.clone()).await.expect("the ledger answers");
        assert_eq!(results.len(), BATCH_EVENTS_MAX);
        assert!(results.iter().all(|result| result.status == S::Created));
        assert!(results.windows(2).all(|pair| pair[0].timestamp + 1 == pair[1].timestamp));
        let total = (0..BATCH_EVENTS_MAX as u128).sum();
        assert_eq!(self.balances(BOB).await, [0, 0, 0, total]);
        let again = self.ledger.create_transfers(batch.clone()).await.expect("the ledger answers");
        assert!(again.iter().all(|result| result.status == S::Exists));
        assert!(again.iter().zip(&results).all(|(again, first)| again.timestamp == first.timestamp));
        let mut above = batch;
        above.push(self.transfer(99, BANK, BOB, 1));
        assert!(self.ledger.create_transfers(above).await.is_err());
        assert_eq!(self.balances(BOB).await, [0, 0, 0, total]);
        assert_eq!(self.send(Vec::new()).await, []);
        self.assert_balanced().await;
    }

    /// Reads: lookups, histories, queries.
    async fn reads(&self) {
        self.open_accounts().await;
        let mut transfers = Vec::new();
        for at in 0..200 {
            let (debit, credit) = if at % 4 == 3 { (ALICE, BOB) } else { (BANK, ALICE) };
            transfers.push(Transfer {
                user_data_64: u64::try_from(at % 3).expect("small"),
                ..self.transfer(100 + at, debit, credit, 1 + at % 2)
            });
        }
        let results = self.ledger.create_transfers(transfers.clone()).await.expect("the ledger answers");
        for (transfer, result) in transfers.iter_mut().zip(&results) {
            assert_eq!(result.status, S::Created);
            transfer.timestamp = result.timestamp;
        }
        let found = self.ledger.lookup_transfers(vec![self.id(101), self.id(99), self.id(100)]).await;
        assert_eq!(found.expect("the ledger answers"), [transfers[1], transfers[0]]);

        let all = AccountFilter::all(self.id(ALICE));
        let read =
            async |filter| self.ledger.get_account_transfers(filter).await.expect("the ledger answers");
        assert_eq!(read(all).await, transfers);
        let debits = |t: &&Transfer| t.debit_account_id == self.id(ALICE);
        let expected: Vec<Transfer> = transfers.iter().filter(debits).copied().collect();
        assert_eq!(read(AccountFilter { credits: false, ..all }).await, expected);
        let expected: Vec<Transfer> = transfers.iter().rev().take(70).copied().collect();
        assert_eq!(read(AccountFilter { reversed: true, limit: 70, ..all }).await, expected);
        let (min, max) = (transfers[60].timestamp, transfers[131].timestamp);
        let period = AccountFilter { timestamp_min: min, timestamp_max: max, ..all };
        assert_eq!(read(period).await, transfers[60..=131]);
        let expected: Vec<Transfer> = transfers[60..=131].iter().rev().take(70).copied().collect();
        assert_eq!(read(AccountFilter { reversed: true, limit: 70, ..period }).await, expected);
        let expected: Vec<Transfer> = transfers.iter().filter(|t| t.user_data_64 == 2).copied().collect();
        assert_eq!(read(AccountFilter { user_data_64: 2, ..all }).await, expected);
        for bad in [
            AccountFilter { limit: 0, ..all },
            AccountFilter { debits: false, credits: false, ..all },
            AccountFilter { timestamp_min: max, timestamp_max: min, ..all },
            AccountFilter::all(self.id(50)),
        ] {
            assert_eq!(read(bad).await, []);
        }

        let balances = self.ledger.get_account_balances(all).await.expect("the ledger answers");
        let mut expected = Vec::new();
        let (mut debits_posted, mut credits_posted) = (0, 0);
        for transfer in &transfers {
            let is_debit = transfer.debit_account_id == self.id(ALICE);
            *(if is_debit { &mut debits_posted } else { &mut credits_posted }) += transfer.amount;
            let timestamp = transfer.timestamp;
            let (debits_pending, credits_pending) = (0, 0);
            let balance =
                AccountBalance { timestamp, debits_pending, debits_posted, credits_pending, credits_posted };
            expected.push(balance);
        }
        assert_eq!(balances, expected);
        let without_history = self.ledger.get_account_balances(AccountFilter::all(self.id(BOB))).await;
        assert_eq!(without_history.expect("the ledger answers"), []);

        let query = QueryFilter { ledger: self.ledger(), limit: 1000, ..QueryFilter::default() };
        let query = QueryFilter { timestamp_min: transfers[0].timestamp, ..query };
        let found = self.ledger.query_transfers(query).await.expect("the ledger answers");
        assert_eq!(found, transfers);
        let reversed = QueryFilter { reversed: true, limit: 3, user_data_64: 1, ..query };
        let found = self.ledger.query_transfers(reversed).await.expect("the ledger answers");
        let ones = transfers.iter().rev().filter(|t| t.user_data_64 == 1).take(3).copied();
        assert_eq!(found, ones.collect::<Vec<_>>());
        let query = QueryFilter { timestamp_min: 0, ..query };
        let accounts = self.ledger.query_accounts(query).await.expect("the ledger answers");
        let ids: Vec<u128> = accounts.iter().map(|account| account.id).collect();
        assert_eq!(ids, [ALICE, BOB, BANK, CAROL].map(|id| self.id(id)));

        let filter = ChangeFilter { timestamp_min: min, timestamp_max: max, limit: 1000 };
        let Some(events) = self.change_events(filter).await else { return };
        let shown: Vec<Transfer> = events.iter().map(|event| event.transfer).collect();
        assert_eq!(shown, transfers[60..=131]);
        for event in &events {
            assert_eq!(event.debit_account.id, event.transfer.debit_account_id);
            assert_eq!(event.credit_account.id, event.transfer.credit_account_id);
        }
    }

    /// Accounts: creation, repetition, refusals.
    async fn accounts(&self) {
        self.open_accounts().await;
        let account = self.account(ALICE).await;
        let event = Account { timestamp: 0, ..account };
        let cases = [
            (event, CreateAccountStatus::Exists),
            (Account { code: 2, ..event }, CreateAccountStatus::ExistsWithDifferentCode),
            (Account { id: 0, ..event }, CreateAccountStatus::IdMustNotBeZero),
            (Account { id: self.id(20), ledger: 0, ..event }, CreateAccountStatus::LedgerMustNotBeZero),
            (Account { id: self.id(20), timestamp: 5, ..event }, CreateAccountStatus::TimestampMustBeZero),
        ];
        let events = cases.iter().map(|(event, _)| *event).collect();
        let results = self.ledger.create_accounts(events).await.expect("the ledger answers");
        for ((_, expected), result) in cases.iter().zip(&results) {
            assert_eq!(result.status, *expected);
        }
        assert_eq!(results[0].timestamp, account.timestamp, "exists: when it was created");
    }

    /// Voiding, and the values that a resolution inherits.
    async fn voiding(&self) {
        self.open_accounts().await;
        let pending = Transfer {
            flags: T::PENDING,
            user_data_128: 11,
            user_data_64: 12,
            ..self.transfer(1, BANK, BOB, 30)
        };
        let second = Transfer { id: self.id(2), ..pending };
        assert_eq!(self.send(vec![pending, second]).await, [S::Created, S::Created]);
        let wrong = Transfer { amount: 29, ..self.void(3, 1) };
        assert_eq!(self.send_one(wrong).await, S::PendingTransferHasDifferentAmount);
        let void = Transfer { user_data_64: 99, ..self.void(3, 1) };
        assert_eq!(self.send_one(void).await, S::Created);
        assert_eq!(self.balances(BOB).await, [0, 0, 30, 0]);
        let stored = self.ledger.lookup_transfers(vec![self.id(3)]).await.expect("the ledger answers");
        let expected = Transfer {
            id: self.id(3),
            pending_id: self.id(1),
            user_data_64: 99,
            flags: T::VOID_PENDING_TRANSFER,
            timestamp: stored[0].timestamp,
            ..pending
        };
        assert_eq!(stored[0], expected, "what is left out is inherited");
        assert_eq!(self.send_one(void).await, S::Exists);
        assert_eq!(self.send_one(Transfer { amount: 30, ..void }).await, S::Exists);
        assert_eq!(self.send_one(self.post(4, 1, 1)).await, S::PendingTransferAlreadyVoided);
        assert_eq!(self.send_one(self.post(5, 2, 0)).await, S::Created);
        assert_eq!(self.balances(BOB).await, [0; 4]);
        self.assert_balanced().await;
    }
}
