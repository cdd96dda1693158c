//! Connects the lane and the ledger: intents go to the ledger in batches, and its answers come back as one
//! command.

use std::sync::Arc;
use std::time::Duration;

use batzen_ledger::{
    Account, BATCH_EVENTS_MAX, CreateTransferStatus, Ledger, LedgerError, Transfer, TransferFlags,
};
use batzen_metrics::{Counter, Histogram};
use batzen_store::{Store, StoreError};
use batzen_tables::switch::{AccountKind, SwitchAccountKey, SwitchAccounts, Transfers};
use tokio::sync::mpsc;

use crate::config::SwitchClock;
use crate::errors::ApiError;
use crate::ids::{Role, derive};
use crate::pipeline::Lane;
use crate::rules::{Answer, AnswerStatus, Command, Intent, IntentKind};

/// The most intents in one request, unless a single bulk exceeds it. A gross intent makes four events.
const INTENTS_MAX: usize = 4096;
/// The most events that one intent makes.
const EVENTS_MAX: usize = 4;
/// The pauses between attempts if the ledger does not answer.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Codes of transfers in the ledger.
pub mod code {
    /// A cleared transfer.
    pub const TRANSFER: u16 = 1;
    /// Liquidity in or out.
    pub const FUNDS: u16 = 2;
    /// Headroom granted or taken back.
    pub const HEADROOM: u16 = 3;
    /// Settlement.
    pub const SETTLEMENT: u16 = 4;
}

/// Counters of requests to the ledger.
#[derive(Debug)]
pub struct ClearingCounters {
    /// Duration of a request to the ledger.
    pub time: Histogram,
    /// Events per request.
    pub events: Histogram,
    /// Requests that had to be repeated.
    pub repeated: Counter,
    /// Answers that contradict the switch's books: an operator must investigate.
    pub broken: Counter,
    /// Gross settlements that failed; the transfers are settled in net instead.
    pub unsettled: Counter,
}

impl Default for ClearingCounters {
    fn default() -> Self {
        Self {
            time: Histogram::of_times(),
            events: Histogram::of_counts(),
            repeated: Counter::default(),
            broken: Counter::default(),
            unsettled: Counter::default(),
        }
    }
}

/// The ledger account of a participant.
#[must_use]
pub fn account(participant: u32, currency: u32, kind: AccountKind) -> u128 {
    SwitchAccountKey::new(participant, currency, kind).ledger_id()
}

/// A ledger client that repeats each request until it is answered.
#[derive(Clone)]
pub struct Patient {
    ledger: Arc<dyn Ledger>,
    counters: Arc<ClearingCounters>,
}

impl Patient {
    /// Wraps a ledger.
    pub fn new(ledger: Arc<dyn Ledger>) -> Self {
        Self { ledger, counters: Arc::default() }
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &ClearingCounters {
        &self.counters
    }

    /// Whether the ledger answers a request now, without a retry.
    ///
    /// # Errors
    /// The ledger's failure.
    pub async fn check(&self) -> Result<(), LedgerError> {
        self.ledger.lookup_accounts(vec![1]).await.map(|_| ())
    }

    /// Waits before a request is repeated. The ids make repetition safe; without an answer, the effect of the
    /// request is unknown.
    async fn pause(&self, pause: &mut Duration, error: &LedgerError) {
        self.counters.repeated.inc();
        if *pause > PAUSE_MIN * 8 {
            tracing::warn!(%error, "the ledger does not answer, trying again");
        }
        tokio::time::sleep(*pause).await;
        *pause = (*pause * 2).min(PAUSE_MAX);
    }

    /// Creates transfers: one status per event.
    pub async fn transfers(&self, events: Vec<Transfer>) -> Vec<CreateTransferStatus> {
        assert!(events.len() <= BATCH_EVENTS_MAX, "requests are cut to the ledger's size");
        let begun = std::time::Instant::now();
        let mut pause = PAUSE_MIN;
        let results = loop {
            match self.ledger.create_transfers(events.clone()).await {
                Ok(results) => break results,
                Err(error) => self.pause(&mut pause, &error).await,
            }
        };
        assert_eq!(results.len(), events.len(), "a ledger answers every event");
        self.counters.time.time(begun.elapsed());
        self.counters.events.count(events.len() as u64);
        results.into_iter().map(|result| result.status).collect()
    }

    /// Creates accounts.
    pub async fn accounts(&self, events: Vec<Account>) -> Vec<batzen_ledger::CreateAccountStatus> {
        let mut pause = PAUSE_MIN;
        loop {
            match self.ledger.create_accounts(events.clone()).await {
                Ok(results) => return results.into_iter().map(|result| result.status).collect(),
                Err(error) => self.pause(&mut pause, &error).await,
            }
        }
    }

    /// Whether any of these transfers exists.
    pub async fn exists_any(&self, ids: &[u128]) -> bool {
        let mut pause = PAUSE_MIN;
        loop {
            match self.ledger.lookup_transfers(ids.to_vec()).await {
                Ok(found) => return !found.is_empty(),
                Err(error) => self.pause(&mut pause, &error).await,
            }
        }
    }

    /// The accounts with these ids; a missing one is all zeros.
    pub async fn lookup(&self, ids: &[u128]) -> Vec<Account> {
        let mut found: Vec<Account> = Vec::with_capacity(ids.len());
        for part in ids.chunks(BATCH_EVENTS_MAX) {
            let mut pause = PAUSE_MIN;
            loop {
                match self.ledger.lookup_accounts(part.to_vec()).await {
                    Ok(accounts) => break found.extend(accounts),
                    Err(error) => self.pause(&mut pause, &error).await,
                }
            }
        }
        let mut found = found.into_iter().peekable();
        ids.iter().map(|id| found.next_if(|account| account.id == *id).unwrap_or_default()).collect()
    }
}

/// The events of an intent. Each but the last is linked to the next.
fn events(intent: &Intent, out: &mut Vec<Transfer>) {
    let Intent { id, payer, payee, currency, amount, .. } = *intent;
    let between = |from, to, kind| (account(from, currency, kind), account(to, currency, kind));
    let resolve = |role, flag| Transfer {
        id: derive(role, id),
        pending_id: id,
        amount: if flag == TransferFlags::POST_PENDING_TRANSFER { amount } else { 0 },
        user_data_64: intent.window,
        flags: flag,
        ..Transfer::default()
    };
    let single = |role, (debit_account_id, credit_account_id), flags| Transfer {
        id: derive(role, id),
        debit_account_id,
        credit_account_id,
        amount,
        user_data_128: id,
        ledger: currency,
        code: code::SETTLEMENT,
        flags,
        ..Transfer::default()
    };
    match intent.kind {
        IntentKind::Reserve => {
            let (debit_account_id, credit_account_id) = between(payer, payee, AccountKind::Position);
            out.push(Transfer {
                id,
                debit_account_id,
                credit_account_id,
                amount,
                user_data_128: id,
                timeout: intent.timeout_s,
                ledger: currency,
                code: code::TRANSFER,
                flags: TransferFlags::PENDING,
                ..Transfer::default()
            });
        }
        IntentKind::Post => out.push(resolve(Role::Post, TransferFlags::POST_PENDING_TRANSFER)),
        IntentKind::Void => out.push(resolve(Role::Void, TransferFlags::VOID_PENDING_TRANSFER)),
        IntentKind::PostGross => {
            let linked = TransferFlags::LINKED;
            let mut post = resolve(Role::Post, TransferFlags::POST_PENDING_TRANSFER);
            post.flags = post.flags | linked;
            out.push(post);
            // Positions return to their former values. The payer's headroom shrinks with its liquidity, which
            // goes to the payee. The headroom that the payee gains is granted afterwards.
            out.push(single(Role::GrossPositions, between(payee, payer, AccountKind::Position), linked));
            let headroom = (
                account(payer, currency, AccountKind::Position),
                account(payer, currency, AccountKind::Grant),
            );
            out.push(single(Role::GrossHeadroom, headroom, linked));
            let liquidity = between(payer, payee, AccountKind::Settlement);
            out.push(single(Role::GrossLiquidity, liquidity, TransferFlags::NONE));
        }
    }
}

fn is_same_bulk(one: &Intent, next: &Intent) -> bool {
    one.bulk.is_some() && one.bulk == next.bulk
}

/// Receives notice when a gross settlement has changed a participant's liquidity or headroom.
pub trait Settled: Send + 'static {
    /// These two participants have settled with each other.
    fn settled(&self, payer: u32, payee: u32, currency: u32);
}

/// The worker that carries intents to the ledger.
pub struct Clearing<S> {
    /// The ledger.
    pub ledger: Patient,
    /// The lane that receives the answers.
    pub lane: Lane,
    /// For the limits when a reservation is refused.
    pub store: Store,
    /// The present time.
    pub clock: SwitchClock,
    /// The receiver of notices about gross settlements.
    pub settled: S,
}

/// All intents left over from the last run, in order.
///
/// # Errors
/// When the store cannot be read.
pub fn left_behind(store: &Store) -> Result<Vec<Intent>, StoreError> {
    let all = store.range_bytes::<Transfers>(
        Transfers::INTENDED,
        std::ops::Bound::Unbounded,
        std::ops::Bound::Unbounded,
        usize::MAX,
        false,
    )?;
    Ok(all.into_iter().filter_map(|found| Intent::of(found.key.id, &found.row)).collect())
}

impl<S: Settled> Clearing<S> {
    /// Runs until the sender of intents is gone. Intents that belong together are sent together. Those in
    /// `left` may have been sent before.
    pub async fn run(self, left: Vec<Intent>, mut intents: mpsc::UnboundedReceiver<Vec<Intent>>) {
        let mut left = &left[..];
        while !left.is_empty() {
            let groups = left.chunk_by(is_same_bulk).map(<[Intent]>::len);
            let ends = groups.scan(0, |end, length| {
                *end += length;
                Some(*end)
            });
            let length =
                ends.take_while(|end| *end <= INTENTS_MAX).last().expect("a bulk is smaller than a request");
            let (part, rest) = left.split_at(length);
            self.clear(part, true).await;
            left = rest;
        }
        while let Some(mut batch) = intents.recv().await {
            while batch.len() < INTENTS_MAX
                && let Ok(more) = intents.try_recv()
            {
                batch.extend(more);
            }
            self.clear(&batch, false).await;
        }
    }

    async fn clear(&self, intents: &[Intent], sent_before: bool) {
        let now = (self.clock)() / 1000;
        let mut answers = Vec::with_capacity(intents.len());
        let (mut sent, mut batch) = (Vec::with_capacity(intents.len()), Vec::with_capacity(intents.len()));
        // All of a bulk goes into one request; even with four events for each item it is small enough.
        for group in intents.chunk_by(is_same_bulk) {
            if batch.len() + group.len() * EVENTS_MAX > BATCH_EVENTS_MAX {
                self.ask(std::mem::take(&mut sent), std::mem::take(&mut batch), &mut answers).await;
            }
            for intent in group {
                if intent.kind == IntentKind::Reserve && intent.expiration <= now && !sent_before {
                    answers.push(Answer { intent: *intent, status: AnswerStatus::TooLate });
                    continue;
                }
                sent.push((*intent, batch.len()));
                events(intent, &mut batch);
            }
        }
        self.ask(sent, batch, &mut answers).await;
        self.lane.submit_internal(Command::Answers(answers));
    }

    async fn ask(&self, sent: Vec<(Intent, usize)>, batch: Vec<Transfer>, answers: &mut Vec<Answer>) {
        if batch.is_empty() {
            return;
        }
        let statuses = self.ledger.transfers(batch).await;
        for (intent, first) in sent {
            let status = match (intent.kind, statuses[first]) {
                (IntentKind::PostGross, CreateTransferStatus::LinkedEventFailed) => {
                    let part = &statuses[first..first + 4];
                    tracing::error!(id = %crate::values::format_uuid(intent.id), ?part, "gross settlement refused");
                    self.ledger.counters.unsettled.inc();
                    self.post_alone(&intent).await
                }
                (_, status) => self.judge(&intent, status).await,
            };
            if let AnswerStatus::Broken(number) = status {
                self.ledger.counters.broken.inc();
                let id = crate::values::format_uuid(intent.id);
                tracing::error!(id, number, kind = ?intent.kind, "the ledger's answer does not fit");
            }
            if intent.kind == IntentKind::PostGross && status == AnswerStatus::Done {
                self.settled.settled(intent.payer, intent.payee, intent.currency);
            }
            answers.push(Answer { intent, status });
        }
    }

    /// Posts a transfer whose settlement failed.
    async fn post_alone(&self, intent: &Intent) -> AnswerStatus {
        let mut event = Vec::new();
        events(&Intent { kind: IntentKind::Post, ..*intent }, &mut event);
        let statuses = self.ledger.transfers(event).await;
        match self.judge(intent, statuses[0]).await {
            AnswerStatus::Done => AnswerStatus::DoneUnsettled,
            other => other,
        }
    }

    async fn judge(&self, intent: &Intent, status: CreateTransferStatus) -> AnswerStatus {
        use CreateTransferStatus as S;
        match (intent.kind, status) {
            (_, S::Created | S::Exists) => AnswerStatus::Done,
            // The chain's first event differs from the same event sent alone only by its flag.
            (IntentKind::PostGross, S::ExistsWithDifferentFlags) => AnswerStatus::DoneUnsettled,
            (IntentKind::Reserve, S::ExceedsCredits | S::IdAlreadyFailed) => {
                AnswerStatus::Refused(self.limit_error(intent).await)
            }
            (IntentKind::Reserve, S::DebitAccountNotFound) => {
                AnswerStatus::Refused(ApiError::PayerFspIdNotFound)
            }
            (IntentKind::Reserve, S::CreditAccountNotFound) => {
                AnswerStatus::Refused(ApiError::PayeeFspIdNotFound)
            }
            (IntentKind::Reserve, S::DebitAccountAlreadyClosed) => {
                AnswerStatus::Refused(ApiError::PayerPermissionError)
            }
            (IntentKind::Reserve, S::CreditAccountAlreadyClosed) => {
                AnswerStatus::Refused(ApiError::PayeePermissionError)
            }
            (
                IntentKind::Reserve,
                S::OverflowsDebitsPending
                | S::OverflowsCreditsPending
                | S::OverflowsDebitsPosted
                | S::OverflowsCreditsPosted
                | S::OverflowsDebits
                | S::OverflowsCredits
                | S::OverflowsTimeout,
            ) => AnswerStatus::Refused(ApiError::InternalServerError),
            (
                IntentKind::Post | IntentKind::PostGross | IntentKind::Void,
                S::PendingTransferExpired | S::PendingTransferAlreadyVoided,
            ) => AnswerStatus::Expired,
            (_, status) => AnswerStatus::Broken(status.number()),
        }
    }

    /// Why a payer's headroom was insufficient: checks liquidity first, then the cap.
    async fn limit_error(&self, intent: &Intent) -> ApiError {
        let Intent { payer, currency, amount, .. } = *intent;
        let balances = Balances::read(&self.ledger, payer, currency).await;
        let over = balances.position().saturating_add_unsigned(amount) > balances.cover();
        let row =
            self.store.get::<SwitchAccounts>(&SwitchAccountKey::new(payer, currency, AccountKind::Position));
        let cap_binds = row
            .ok()
            .flatten()
            .and_then(|stored| stored.row.ndc)
            .is_some_and(|ndc| i128::try_from(ndc).is_ok_and(|ndc| ndc < balances.cover()));
        if over || !cap_binds { ApiError::PayerFspInsufficientLiquidity } else { ApiError::PayerLimitError }
    }
}

/// The balances of a participant in one currency at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Balances {
    /// POSITION.
    pub position: Account,
    /// SETTLEMENT.
    pub settlement: Account,
    /// The grant account.
    pub grant: Account,
}

fn signed(amount: u128) -> i128 {
    i128::try_from(amount).expect("amounts of 10^22 at most do not add up to 2^127")
}

impl Balances {
    /// Reads the balances of one participant.
    pub async fn read(ledger: &Patient, participant: u32, currency: u32) -> Self {
        Self::read_all(ledger, &[(participant, currency)]).await[0]
    }

    /// Reads the balances of several participants at one moment.
    pub async fn read_all(ledger: &Patient, whose: &[(u32, u32)]) -> Vec<Self> {
        let ids: Vec<u128> = whose
            .iter()
            .flat_map(|&(participant, currency)| {
                [AccountKind::Position, AccountKind::Settlement, AccountKind::Grant]
                    .map(|kind| account(participant, currency, kind))
            })
            .collect();
        let found = ledger.lookup(&ids).await;
        found
            .chunks_exact(3)
            .map(|part| Self { position: part[0], settlement: part[1], grant: part[2] })
            .collect()
    }

    /// The granted headroom.
    #[must_use]
    pub fn granted(&self) -> i128 {
        signed(self.grant.debits_posted) - signed(self.grant.credits_posted)
    }

    /// The participant's debt; negative if it is owed money.
    #[must_use]
    pub fn position(&self) -> i128 {
        signed(self.position.debits_posted) + signed(self.position.debits_pending)
            - signed(self.position.credits_posted)
            + self.granted()
    }

    /// The amount reserved for transfers under way.
    #[must_use]
    pub const fn reserved(&self) -> u128 {
        self.position.debits_pending
    }

    /// Liquidity at the settlement bank, less reserved withdrawals.
    #[must_use]
    pub fn cover(&self) -> i128 {
        signed(self.settlement.credits_posted)
            - signed(self.settlement.debits_posted)
            - signed(self.settlement.debits_pending)
    }
}
