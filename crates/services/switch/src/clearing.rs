//! Connects the lane and the ledger: intents go to the ledger in rounds, and the answers of a round come back
//! as one command.

use std::sync::Arc;

use batzen_ledger::{
    Account, BATCH_EVENTS_MAX, Booking, CreateTransferStatus, Intents, RetryingLedger, Sent, Transfer,
    TransferFlags,
};
use batzen_metrics::Counter;
use batzen_store::{Store, StoreError};
use batzen_tables::switch::{AccountKind, SwitchAccountKey, SwitchAccounts, Transfers};

use crate::clock::SwitchClock;
use crate::errors::ApiError;
use crate::ids::{Role, derive};
use crate::pipeline::Lane;
use crate::rules::{Answer, AnswerStatus, Answers, Intent, IntentKind};

/// The most events that one intent makes, for gross settlement.
const EVENTS_MAX: usize = 4;

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

/// Counters of the ledger's answers.
#[derive(Debug, Default)]
pub struct ClearingCounters {
    /// Answers that contradict the switch's books: an operator must investigate.
    pub broken: Counter,
    /// Gross settlements that failed; the transfers are settled in net instead.
    pub unsettled: Counter,
}

/// The ledger account of a participant.
#[must_use]
pub fn account(participant: u32, currency: u32, kind: AccountKind) -> u128 {
    SwitchAccountKey::new(participant, currency, kind).ledger_id()
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

/// The intents of the switch, for its ledger outbox.
pub struct Clearing {
    /// The lane that receives the answers.
    pub lane: Lane,
    /// For the limits when a reservation is refused.
    pub store: Store,
    /// The present time.
    pub clock: SwitchClock,
    /// The counters.
    pub counters: Arc<ClearingCounters>,
    /// Called when a gross settlement has changed the liquidity or headroom of both participants.
    pub settled: Box<dyn Fn(&Intent) + Send + Sync>,
}

/// All intents left over from the last run, in order. Each group is of one bulk.
///
/// # Errors
/// When the store cannot be read.
pub fn left_behind(store: &Store) -> Result<Vec<Vec<Intent>>, StoreError> {
    let all = store.range_bytes::<Transfers>(
        Transfers::INTENDED,
        std::ops::Bound::Unbounded,
        std::ops::Bound::Unbounded,
        usize::MAX,
        false,
    )?;
    let left: Vec<Intent> =
        all.into_iter().filter_map(|found| Intent::of(found.key.id, &found.row)).collect();
    Ok(left.chunk_by(is_same_bulk).map(<[Intent]>::to_vec).collect())
}

/// A request to the ledger.
#[derive(Default)]
struct Request {
    events: Vec<Transfer>,
    /// For each intent, its place in the round and its first event.
    places: Vec<(usize, usize)>,
}

impl Intents for Clearing {
    type Intent = Intent;
    type Answer = AnswerStatus;
    type Booked = ();

    const ROUND_INTENTS_MAX: usize = 4096;

    async fn ask(&self, ledger: &RetryingLedger, round: &[Sent<Intent>]) -> Vec<AnswerStatus> {
        let now = (self.clock)() / 1000;
        let mut answers = vec![AnswerStatus::TooLate; round.len()];
        let mut request = Request::default();
        let mut places = 0..round.len();
        // All of a bulk goes into one request; even with four events for each item it is small enough.
        for group in round.chunk_by(|one, next| is_same_bulk(&one.intent, &next.intent)) {
            if request.events.len() + group.len() * EVENTS_MAX > BATCH_EVENTS_MAX {
                self.send(ledger, round, std::mem::take(&mut request), &mut answers).await;
            }
            for (Sent { intent, is_repeated }, place) in group.iter().zip(&mut places) {
                if intent.kind == IntentKind::Reserve && intent.expiration <= now && !is_repeated {
                    continue;
                }
                request.places.push((place, request.events.len()));
                events(intent, &mut request.events);
            }
        }
        self.send(ledger, round, request, &mut answers).await;
        answers
    }

    fn book(&self, round: Vec<(Intent, AnswerStatus)>) -> Booking<()> {
        let answers = round.iter().map(|(intent, status)| Answer { intent: *intent, status: *status });
        let booked = self.lane.submit_internal(Answers(answers.collect()).into());
        Box::pin(async move {
            let result = match booked.await {
                Ok(Ok(_)) => Some(()),
                Ok(Err(refusal)) => panic!("the rules refused to book the ledger's answers: {refusal}"),
                // The lane has ended, and the next start repeats it.
                Err(_) => None,
            };
            vec![result; round.len()]
        })
    }
}

impl Clearing {
    async fn send(
        &self,
        ledger: &RetryingLedger,
        round: &[Sent<Intent>],
        request: Request,
        answers: &mut [AnswerStatus],
    ) {
        let Request { events, places } = request;
        if events.is_empty() {
            return;
        }
        let results = ledger.create_transfers(events).await;
        for (place, first) in places {
            let Sent { intent, .. } = &round[place];
            let status = match (intent.kind, results[first].status) {
                (IntentKind::PostGross, CreateTransferStatus::LinkedEventFailed) => {
                    let part = &results[first..first + 4];
                    tracing::error!(id = %crate::values::format_uuid(intent.id), ?part, "gross settlement refused");
                    self.counters.unsettled.inc();
                    self.post_alone(ledger, intent).await
                }
                (_, status) => self.judge(ledger, intent, status).await,
            };
            if let AnswerStatus::Broken(number) = status {
                self.counters.broken.inc();
                let id = crate::values::format_uuid(intent.id);
                tracing::error!(id, number, kind = ?intent.kind, "the ledger's answer does not fit");
            }
            if intent.kind == IntentKind::PostGross && status == AnswerStatus::Done {
                (self.settled)(intent);
            }
            answers[place] = status;
        }
    }

    /// Posts a transfer whose settlement failed.
    async fn post_alone(&self, ledger: &RetryingLedger, intent: &Intent) -> AnswerStatus {
        let mut event = Vec::new();
        events(&Intent { kind: IntentKind::Post, ..*intent }, &mut event);
        let results = ledger.create_transfers(event).await;
        match self.judge(ledger, intent, results[0].status).await {
            AnswerStatus::Done => AnswerStatus::DoneUnsettled,
            other => other,
        }
    }

    async fn judge(
        &self,
        ledger: &RetryingLedger,
        intent: &Intent,
        status: CreateTransferStatus,
    ) -> AnswerStatus {
        use CreateTransferStatus as S;
        match (intent.kind, status) {
            (_, S::Created | S::Exists) => AnswerStatus::Done,
            // The chain's first event differs from the same event sent alone only by its flag.
            (IntentKind::PostGross, S::ExistsWithDifferentFlags) => AnswerStatus::DoneUnsettled,
            (IntentKind::Reserve, S::ExceedsCredits | S::IdAlreadyFailed) => {
                AnswerStatus::Refused(self.limit_error(ledger, intent).await)
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
    async fn limit_error(&self, ledger: &RetryingLedger, intent: &Intent) -> ApiError {
        let Intent { payer, currency, amount, .. } = *intent;
        let balances = Balances::read(ledger, payer, currency).await;
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
    pub async fn read(ledger: &RetryingLedger, participant: u32, currency: u32) -> Self {
        Self::read_all(ledger, &[(participant, currency)]).await[0]
    }

    /// Reads the balances of several participants at one moment.
    pub async fn read_all(ledger: &RetryingLedger, whose: &[(u32, u32)]) -> Vec<Self> {
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
