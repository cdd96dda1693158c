//! The auditor's books: what rows add up to, for each coin, reserve, transfer, purse and denomination.
//!
//! Every row adds to some accounts, whatever its order, so threads can post rows side by side, and a change of a row
//! is the old row taken off and the new one added. That the sums agree is checked at the end, when every row has been
//! posted.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

use batzen_crypto::{EddsaPublicKey, EddsaSignature, HashCode, ShortHash, Wtid};
use batzen_protocol::Timestamp;
use batzen_tables::exchange::{
    AggregateKey, AggregateRow, ArchiveTransferRow, ClosingKey, ClosingRow, CoinPub, DenomSerial, DepositKey,
    DrainRow, MeltKey, PaytoHash, PreparedRow, PurseMergeRow, PursePub, PurseRow, ReserveAccountRow,
    ReserveOpenRow, ReservePub, ReserveRequestKey, ReserveRow, WireOutRow,
};

/// A map in parts with a lock each.
pub(crate) struct Shards<K, V>(Vec<Mutex<HashMap<K, V>>>);

const SHARDS: usize = 256;

/// A key that says in which part it is.
pub(crate) trait Sharded: Hash + Eq {
    /// A byte that is spread evenly.
    fn shard(&self) -> u8;
}

impl Sharded for EddsaPublicKey {
    fn shard(&self) -> u8 {
        self.as_bytes()[0]
    }
}

impl Sharded for Wtid {
    fn shard(&self) -> u8 {
        self.as_bytes()[0]
    }
}

impl Sharded for DepositKey {
    fn shard(&self) -> u8 {
        self.coin_pub.shard()
    }
}

impl Sharded for MeltKey {
    fn shard(&self) -> u8 {
        self.coin_pub.shard()
    }
}

impl Sharded for ReserveRequestKey {
    fn shard(&self) -> u8 {
        self.reserve_pub.shard()
    }
}

impl Sharded for RecoupName {
    fn shard(&self) -> u8 {
        self.coin_pub.shard()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K, V> Default for Shards<K, V> {
    fn default() -> Self {
        Self((0..SHARDS).map(|_| Mutex::default()).collect())
    }
}

impl<K: Sharded + Clone, V: Default> Shards<K, V> {
    /// Changes the value of a key, which is new if there is none.
    pub(crate) fn change<T>(&self, key: &K, change: impl FnOnce(&mut V) -> T) -> T {
        let mut part = lock(&self.0[usize::from(key.shard())]);
        if let Some(value) = part.get_mut(key) {
            return change(value);
        }
        change(part.entry(key.clone()).or_default())
    }

    /// Reads the value of a key.
    pub(crate) fn read<T>(&self, key: &K, read: impl FnOnce(&V) -> T) -> Option<T> {
        lock(&self.0[usize::from(key.shard())]).get(key).map(read)
    }

    /// Visits every key.
    pub(crate) fn each(&self, mut visit: impl FnMut(&K, &mut V)) {
        for part in &self.0 {
            for (key, value) in lock(part).iter_mut() {
                visit(key, value);
            }
        }
    }
}

/// A row that says something about an object, with its serial number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fact<T> {
    pub(crate) serial: u64,
    pub(crate) row: T,
}

/// The direction in which a row is posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// It is there, and new: its signatures and fields are checked.
    Add,
    /// It is there, and was checked before.
    Keep,
    /// It was there before.
    Remove,
}

impl Way {
    /// The amount with its sign.
    pub(crate) fn of(self, units: u128) -> i128 {
        let units = i128::try_from(units).expect("amounts are below 2^80");
        match self {
            Self::Add | Self::Keep => units,
            Self::Remove => -units,
        }
    }

    /// One, with its sign.
    pub(crate) fn one(self) -> i64 {
        match self {
            Self::Add | Self::Keep => 1,
            Self::Remove => -1,
        }
    }

    /// Notes a fact, or that it no longer holds.
    pub(crate) fn note<T>(self, fact: &mut Option<Fact<T>>, serial: u64, row: T) {
        *fact = match self {
            Self::Add | Self::Keep => Some(Fact { serial, row }),
            Self::Remove => None,
        };
    }
}

/// The terms of a coin that are needed again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CoinFacts {
    pub(crate) denom: DenomSerial,
    pub(crate) h_age: Option<ShortHash>,
    pub(crate) remaining: u128,
    pub(crate) zombie: bool,
}

#[derive(Debug, Default, Clone)]
pub(crate) struct CoinBook {
    pub(crate) coin: Option<Fact<CoinFacts>>,
    /// Deposits, melts, recoups, payments into purses and for reserves.
    pub(crate) spent: i128,
    /// Refunds and recoups that came back.
    pub(crate) back: i128,
    /// Recoups that came back.
    pub(crate) recouped_into: i64,
    /// A row that names it, for the report if it is missing.
    pub(crate) user: Option<(&'static str, u64)>,
}

/// A deposit with refunds.
#[derive(Debug, Default, Clone)]
pub(crate) struct RefundBook {
    /// The sum by the deposit.
    pub(crate) claimed: i128,
    /// The sum by the refunds.
    pub(crate) refunded: i128,
    pub(crate) serial: u64,
}

/// A melt and its reveal.
#[derive(Debug, Default, Clone)]
pub(crate) struct RefreshBook {
    pub(crate) melt: Option<Fact<u128>>,
    pub(crate) reveal: Option<Fact<u128>>,
}

/// Names a recoup: of a withdrawn coin, or of one obtained by refresh.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct RecoupName {
    pub(crate) coin_pub: CoinPub,
    pub(crate) n: u32,
    pub(crate) is_refresh: bool,
}

/// The facts on which a recoup and its credit must agree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecoupFacts {
    /// The reserve or the old coin.
    pub(crate) receiver: EddsaPublicKey,
    pub(crate) amount: u128,
    pub(crate) time: Timestamp,
}

/// A recoup and its credit.
#[derive(Debug, Default, Clone)]
pub(crate) struct RecoupBook {
    pub(crate) recoup: Option<Fact<RecoupFacts>>,
    pub(crate) credit: Option<Fact<RecoupFacts>>,
    /// The planchet, and for a refresh its commitment.
    pub(crate) origin: Option<(HashCode, Option<HashCode>)>,
}

/// A transfer's receiver.
pub(crate) use batzen_tables::exchange::DepositTarget as Receiver;

/// An outgoing transfer: the decision, what it pays, and the order to the bank.
#[derive(Debug, Default, Clone)]
pub(crate) struct TransferBook {
    pub(crate) deposits: i64,
    /// Contributions less refunds.
    pub(crate) contributed: i128,
    /// Deposit fees of those that were not completely refunded.
    pub(crate) fees: i128,
    /// Deposits of which less is left than their fee.
    pub(crate) small: i64,
    /// The receiver that the first deposit names, with its serial, and a deposit with another one.
    pub(crate) receiver: Option<(Receiver, u64)>,
    pub(crate) stray: Option<u64>,
    pub(crate) wire_out: Option<Box<Fact<WireOutRow>>>,
    pub(crate) prepared: Option<Box<Fact<PreparedRow>>>,
    pub(crate) closing: Option<Box<Fact<(ClosingKey, ClosingRow)>>>,
    pub(crate) drain: Option<Box<Fact<DrainRow>>>,
    pub(crate) aggregate: Option<Box<Fact<(AggregateKey, AggregateRow)>>>,
    /// Number of sums that wait under its identifier.
    pub(crate) aggregates: i64,
    pub(crate) archived: Option<Box<Fact<ArchiveTransferRow>>>,
}

#[derive(Debug, Default, Clone)]
pub(crate) struct ReserveBook {
    pub(crate) reserve: Option<Fact<ReserveRow>>,
    pub(crate) account: Option<Fact<ReserveAccountRow>>,
    /// Rows that add to the following sums.
    pub(crate) entries: i64,
    pub(crate) into: i128,
    pub(crate) out: i128,
    /// The first incoming transfer: serial and sender.
    pub(crate) first: Option<(u64, PaytoHash)>,
    /// Senders of other transfers, if they are not that one.
    pub(crate) other_senders: BTreeSet<PaytoHash>,
    /// Open purses that use its quota.
    pub(crate) quota: i64,
    pub(crate) closings: Vec<Fact<(u32, ClosingRow)>>,
    /// Accounts that its owner asked to close it to.
    pub(crate) close_targets: Vec<PaytoHash>,
    /// Requests to close it to its account of origin: serial, time, and that account as the exchange noted it.
    pub(crate) origin_targets: Vec<(u64, Timestamp, PaytoHash)>,
    /// A row that names it, for the report if it is missing.
    pub(crate) user: Option<(&'static str, u64)>,
}

#[derive(Debug, Default, Clone)]
pub(crate) struct PurseBook {
    pub(crate) purse: Option<Fact<PurseRow>>,
    pub(crate) merge: Option<Fact<PurseMergeRow>>,
    pub(crate) deletion: Option<Fact<EddsaSignature>>,
    pub(crate) coins: i64,
    pub(crate) contributed: i128,
    pub(crate) balance: i128,
    pub(crate) refunded: i64,
    pub(crate) refunded_units: i128,
}

/// A request that prolonged a reserve.
#[derive(Debug, Default, Clone)]
pub(crate) struct OpenBook {
    pub(crate) open: Option<Fact<ReserveOpenRow>>,
    /// Payments of coins, less deposit fees.
    pub(crate) coins: i128,
    /// A payment, and the signature that it names.
    pub(crate) payment: Option<(u64, EddsaSignature)>,
    /// Whether payments name different signatures.
    pub(crate) mixed: bool,
}

/// Sums over the rows of one denomination.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DenomTally {
    /// Coins withdrawn.
    pub(crate) withdrawn: i64,
    /// Coins obtained by refresh.
    pub(crate) refreshed: i64,
    /// Coins that were used.
    pub(crate) known: i64,
    /// Deposit fees, of deposits that were not completely refunded.
    pub(crate) deposit_fees: i128,
    /// Value paid out by recoup, in units.
    pub(crate) recouped: i128,
    /// Value spent less value that came back, of its coins. Known only at the end.
    pub(crate) redeemed: i128,
    /// Coins spent by archived rows.
    pub(crate) archived: i64,
}

impl DenomTally {
    /// Adds other sums, or takes them off.
    pub(crate) fn combine(&mut self, other: &Self, way: Way) {
        let one = way.one();
        self.withdrawn += one * other.withdrawn;
        self.refreshed += one * other.refreshed;
        self.known += one * other.known;
        self.deposit_fees += i128::from(one) * other.deposit_fees;
        self.recouped += i128::from(one) * other.recouped;
        self.redeemed += i128::from(one) * other.redeemed;
        self.archived += one * other.archived;
    }

    /// Coins issued.
    pub(crate) const fn issued(&self) -> i64 {
        self.withdrawn + self.refreshed
    }
}

/// Sums over all rows, in units of 10⁻⁸. See [`crate::audit::sheet`].
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SumTally {
    pub(crate) wired_in: i128,
    pub(crate) reserves: i128,
    pub(crate) open_deposits: i128,
    pub(crate) in_flight: i128,
    pub(crate) wired_out: i128,
    pub(crate) history_fees: i128,
    pub(crate) closing_fees: i128,
    pub(crate) closing_rounding: i128,
    pub(crate) account_fees: i128,
    pub(crate) refund_fees: i128,
    pub(crate) drained: i128,
    pub(crate) issued: i128,
    pub(crate) withdraw_fees: i128,
    /// Removed rows, by term of the balance sheet.
    pub(crate) collected: [i128; 22],
    /// The sums, by the archives, that archived coins have spent and archived transfers have paid.
    pub(crate) archived_coins: i128,
    pub(crate) archived_transfers: i128,
}

impl SumTally {
    /// Adds other sums, or takes them off.
    pub(crate) fn combine(&mut self, other: &Self, way: Way) {
        let one = i128::from(way.one());
        self.wired_in += one * other.wired_in;
        self.reserves += one * other.reserves;
        self.open_deposits += one * other.open_deposits;
        self.in_flight += one * other.in_flight;
        self.wired_out += one * other.wired_out;
        self.history_fees += one * other.history_fees;
        self.closing_fees += one * other.closing_fees;
        self.closing_rounding += one * other.closing_rounding;
        self.account_fees += one * other.account_fees;
        self.refund_fees += one * other.refund_fees;
        self.drained += one * other.drained;
        self.issued += one * other.issued;
        self.withdraw_fees += one * other.withdraw_fees;
        self.archived_coins += one * other.archived_coins;
        self.archived_transfers += one * other.archived_transfers;
        for (sum, other) in self.collected.iter_mut().zip(other.collected) {
            *sum += one * other;
        }
    }
}

/// The sums of a batch of rows, added to the books at once.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) denoms: HashMap<u32, DenomTally>,
    /// Rows and bytes of each archive, less those of its parts.
    pub(crate) archives: HashMap<u32, [i128; 2]>,
    pub(crate) sums: SumTally,
}

impl Tally {
    pub(crate) fn denom(&mut self, serial: DenomSerial) -> &mut DenomTally {
        self.denoms.entry(serial.0).or_default()
    }

    /// Adds other sums, or takes them off.
    pub(crate) fn combine(&mut self, other: &Self, way: Way) {
        for (serial, tally) in &other.denoms {
            self.denoms.entry(*serial).or_default().combine(tally, way);
        }
        let one = i128::from(way.one());
        for (run, [rows, bytes]) in &other.archives {
            let sums = self.archives.entry(*run).or_default();
            sums[0] += one * rows;
            sums[1] += one * bytes;
        }
        self.sums.combine(&other.sums, way);
    }
}

#[derive(Default)]
pub(crate) struct Books {
    pub(crate) coins: Shards<CoinPub, CoinBook>,
    pub(crate) refunds: Shards<DepositKey, RefundBook>,
    pub(crate) refreshes: Shards<MeltKey, RefreshBook>,
    pub(crate) recoups: Shards<RecoupName, RecoupBook>,
    pub(crate) transfers: Shards<Wtid, TransferBook>,
    pub(crate) reserves: Shards<ReservePub, ReserveBook>,
    pub(crate) purses: Shards<PursePub, PurseBook>,
    pub(crate) opens: Shards<ReserveRequestKey, OpenBook>,
    pub(crate) tally: Mutex<Tally>,
}

impl Books {
    /// The sums so far.
    pub(crate) fn tally(&self) -> MutexGuard<'_, Tally> {
        lock(&self.tally)
    }
}
