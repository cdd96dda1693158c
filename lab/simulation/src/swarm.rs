//! The parameters that a seed determines before its run: the participants and the probability of each fault.
//! Every run has its own mix: some have only crashes and others none, which finds bugs that an average mix
//! would not.

use crate::keys::DENOMS;
use crate::random::Random;

/// A planted bug, which the checker must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The exchange answers a batch before it is durable.
    AnswerBeforeCommit,
    /// The exchange's disk acknowledges syncs that it has not done.
    LyingDisk,
    /// Recovery does not sync what it has replayed.
    RecoveryWithoutSync,
    /// The bank pays once for each copy of a customer's order.
    PaysEveryCopy,
    /// The transfer worker draws a new request uid for each attempt.
    NewUidForEachAttempt,
    /// The exchange gives every copy of a refund request its own number.
    RefundsEveryCopy,
    /// The bank books movements that the ledger has not answered.
    BooksWithoutLedger,
    /// The wallet sends before it stores.
    SendsBeforeStoring,
    /// The wallet credits a refund twice.
    CountsRefundTwice,
    /// The transfer worker sends a transfer again under another uid after a restart.
    PaysAgainAfterCrash,
    /// The exchange confirms refunds but does not book them.
    IgnoresRefunds,
    /// The exchange reads the clock only when its process starts.
    ReadsClockOnce,
    /// After a failure, the wirewatch worker is never woken again.
    LostWakeup,
    /// The ledger does not void expired pending transfers.
    NeverVoids,
    /// The wirewatch worker moves its cursor past a row that it has not booked.
    SkipsARow,
    /// The exchange does not check what is left of a coin: it treats each deposit as the coin's first.
    ForgetsSpentCoins,
    /// The exchange confirms recoups of refreshed coins but does not book them.
    IgnoresRecoups,
    /// After a restart, the exchange does not know which denomination it has revoked.
    ForgetsRevocations,
    /// The exchange never finds that a purse is due for its refund.
    KeepsExpiredPurses,
    /// The exchange confirms the merge of a purse that is in another reserve.
    ConfirmsEveryMerge,
    /// The exchange books deposits for the account of a customer.
    RedirectsDeposits,
    /// After a restart, the exchange does not know its limits for customers who are not identified.
    ForgetsLimits,
    /// The shop signs receipts of payments that it does not book.
    ShopForgetsPayments,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 23] = [
        Self::AnswerBeforeCommit,
        Self::LyingDisk,
        Self::RecoveryWithoutSync,
        Self::PaysEveryCopy,
        Self::NewUidForEachAttempt,
        Self::RefundsEveryCopy,
        Self::BooksWithoutLedger,
        Self::SendsBeforeStoring,
        Self::CountsRefundTwice,
        Self::PaysAgainAfterCrash,
        Self::IgnoresRefunds,
        Self::ReadsClockOnce,
        Self::LostWakeup,
        Self::NeverVoids,
        Self::SkipsARow,
        Self::ForgetsSpentCoins,
        Self::IgnoresRecoups,
        Self::ForgetsRevocations,
        Self::KeepsExpiredPurses,
        Self::ConfirmsEveryMerge,
        Self::RedirectsDeposits,
        Self::ForgetsLimits,
        Self::ShopForgetsPayments,
    ];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> String {
        format!("{self:?}")
    }

    /// The bug of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|bug| bug.name() == name)
    }
}

/// One second, in microseconds: the unit of simulated time.
pub const SECOND: u64 = 1_000_000;
/// One hour.
pub const HOUR: u64 = 3600 * SECOND;

/// The share of seeds that are large, in thousandths.
const LARGE: u64 = 20;

/// The revocation of a denomination.
#[derive(Clone, Copy, Debug)]
pub struct Revocation {
    /// The denomination, by its index in the keys.
    pub denom: usize,
    /// The time after which the operator orders it.
    pub after: u64,
}

/// The parameters of a run. Times are in microseconds, probabilities in thousandths.
#[derive(Clone, Debug)]
pub struct Swarm {
    /// Honest customers.
    pub customers: usize,
    /// Customers who try to spend coins twice.
    pub thieves: usize,
    /// Merchants.
    pub merchants: u64,
    /// Time that customers act and faults happen.
    pub active: u64,
    /// Time between two acts of a customer.
    pub act_gap: u64,
    /// Messages that are lost.
    pub lost: u64,
    /// Messages that arrive twice.
    pub duplicated: u64,
    /// Messages that take up to an hour.
    pub delayed: u64,
    /// The time between two crashes of each service; none for no crashes.
    pub crash_gap: Option<u64>,
    /// Crashes that are power losses; the others are kills.
    pub power_losses: u64,
    /// Crashes during the recovery of the next process.
    pub crash_twice: u64,
    /// The probability that a wallet dies at a step.
    pub customer_crash: u64,
    /// The time between two failures of each disk.
    pub disk_gap: Option<u64>,
    /// The time between two steps of each clock.
    pub clock_gap: Option<u64>,
    /// Whether one write of the run is misdirected.
    pub misdirects: bool,
    /// Time between two rounds of a worker.
    pub worker_gap: u64,
    /// Number of rows of bank history that the exchange requests at once.
    pub page_rows: u64,
    /// Time that the exchange gathers requests for a batch, at most.
    pub gather: u64,
    /// Whether customers who withdraw much must be identified.
    pub identifies: bool,
    /// The revocation of this run, if there is one.
    pub revocation: Option<Revocation>,
}

impl Swarm {
    /// The parameters of a seed.
    #[must_use]
    pub fn draw(random: &mut Random) -> Self {
        let mut rare = |per_mille: u64, max: u64| {
            let level = random.below(max) + 1;
            if random.chance(per_mille) { level } else { 0 }
        };
        let (lost, duplicated, delayed) = (rare(600, 150), rare(600, 150), rare(500, 60));
        let customer_crash = rare(500, 60);
        let mut every = |per_mille: u64, from: u64, to: u64| {
            let gap = random.between(from, to);
            random.chance(per_mille).then_some(gap)
        };
        let crash_gap = every(700, HOUR / 2, 6 * HOUR);
        let disk_gap = every(350, HOUR, 8 * HOUR);
        let clock_gap = every(350, HOUR, 6 * HOUR);
        // Most seeds are small, so that many mixes are tried. Some are large, so that rows, segments and
        // waits add up.
        let is_large = random.chance(LARGE);
        let (customers, hours) = if is_large {
            (random.between(1, 4), random.between(5, 12))
        } else {
            (*random.pick(&[1, 1, 2]), random.between(3, 5))
        };
        let revocation = random.chance(300).then(|| Revocation {
            denom: usize::try_from(random.below(DENOMS as u64)).expect("few"),
            after: random.between(HOUR / 2, hours * HOUR),
        });
        Self {
            customers: usize::try_from(customers).expect("few"),
            thieves: usize::from(random.chance(200)),
            merchants: random.between(1, 2),
            active: hours * HOUR,
            act_gap: random.between(15, 50) * 60 * SECOND,
            lost,
            duplicated,
            delayed,
            crash_gap,
            power_losses: random.between(0, 1000),
            crash_twice: *random.pick(&[0, 100, 500]),
            customer_crash,
            disk_gap,
            clock_gap,
            misdirects: random.chance(40),
            worker_gap: random.between(60, 900) * SECOND,
            page_rows: random.between(1, 4),
            gather: *random.pick(&[2_000, 50_000, 2 * SECOND, 20 * SECOND]),
            identifies: random.chance(400),
            revocation,
        }
    }
}
