//! The balance sheet, computed from the rows alone.
//!
//! Every figure is a sum over tables and not a running counter, so that it checks the rules instead of
//! repeating them. Balances and remaining values come from their columns, everything else from the rows that
//! should have caused them. If any rule creates or loses money, [`Totals::conserved`] is false.
//!
//! # The identity
//!
//! `wired_in = wired_out + reserves + outstanding + pending + purses + unrevealed_melts + fees`, to the last
//! unit, where
//!
//! * **wired_in**: all incoming transfers that were booked.
//! * **wired_out**: transfers that the bank accepted (aggregates, closings, drains).
//! * **reserves**: Σ balances.
//! * **outstanding** = issued − redeemed: what coins in wallets are worth. **issued**: Σ values of all coins
//!   signed, by withdrawal or reveal. **redeemed**: Σ (value − remaining) of all known coins, so refunds and
//!   recoup-refreshes, which fill coins again, reduce it.
//! * **pending** = deposits + transient + in_flight: **deposits** not aggregated yet, contributions less
//!   refunds, the deposit fee still included, because a complete refund would waive it; **transient**
//!   aggregates, deposit fees taken off, the wire fee not; **in_flight** transfers decided but not accepted
//!   by the bank yet (failed ones too).
//! * **purses**: Σ contributions to purses that were neither paid nor refunded, deposit fees included.
//! * **unrevealed_melts**: Σ (amount − melt fee) of melts without reveal.
//! * Garbage collection and archiving keep the sums of the rows that they remove in `collected_sums`; they count
//!   here. Of transfers that have left in part, `archive_transfers` has what is gone.
//! * **fees**: income that is still there: [`Fees`] less the profit paid out by drains. If more was paid out than
//!   earned, it is zero, and **overdrawn** is the customers' money that is missing; it counts with `wired_in`. So does
//!   **overredeemed**, if more coins were redeemed than issued.

use std::collections::HashMap;

use batzen_crypto::Wtid;
use batzen_protocol::{AmountError, Money, MoneySum};
use batzen_store::{Found, Store, StoreError, Table, go_on};
use batzen_tables::exchange::{
    Aggregates, ArchiveTransfers, Closings, CoinPub, Coins, CollectedSums, CollectedTerm, DenomSerial,
    Deposits, Drains, HistoryRequests, MeltKey, Melts, Prepared, PurseDeposits, PursePub, PurseState, Purses,
    Refunds, ReserveOpenDeposits, ReserveOpens, Reserves, ReservesIn, Reveals, TransferKind, WireOut,
    Withdrawals,
};

use crate::rules::{DenomTable, DenomTerms};

/// The balance sheet of an exchange. See the module's documentation for what each term means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Incoming transfers booked.
    pub wired_in: MoneySum,
    /// Outgoing transfers that the bank accepted.
    pub wired_out: MoneySum,
    /// Balances of reserves.
    pub reserves: MoneySum,
    /// Values of all coins signed.
    pub issued: MoneySum,
    /// The sum that known coins have spent.
    pub redeemed: MoneySum,
    /// issued − redeemed.
    pub outstanding: MoneySum,
    /// Deposits not aggregated yet.
    pub deposits: MoneySum,
    /// Transient aggregates.
    pub transient: MoneySum,
    /// Transfers decided, but not accepted by the bank yet.
    pub in_flight: MoneySum,
    /// deposits + transient + in_flight.
    pub pending: MoneySum,
    /// Contributions to open purses.
    pub purses: MoneySum,
    /// Melted value that is not revealed.
    pub unrevealed_melts: MoneySum,
    /// Income that is not paid out.
    pub fees: MoneySum,
    /// Profit paid out beyond what was earned: customers' money that is missing.
    pub overdrawn: MoneySum,
    /// Coins redeemed beyond what was issued: somebody else can sign coins.
    pub overredeemed: MoneySum,
    /// Income by source, and what has been paid out of it.
    pub income: Fees,
}

/// Income of the exchange, and the profit paid out of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fees {
    /// Withdraw fees, also of coins obtained by refresh.
    pub withdraw: MoneySum,
    /// Deposit fees of aggregated deposits that were not completely refunded, less what could not be paid.
    pub deposit: MoneySum,
    /// Melt fees.
    pub(crate) refresh: MoneySum,
    /// Refund fees.
    pub refund: MoneySum,
    /// Wire fees of transfers to merchants.
    pub(crate) wire: MoneySum,
    /// Closing fees.
    pub closing: MoneySum,
    /// Fees of full histories.
    pub history: MoneySum,
    /// Deposit fees of paid purses, purse fees, and what purses got beyond their targets.
    pub purse: MoneySum,
    /// Payments for prolonging reserves.
    pub account: MoneySum,
    /// Remainders of outgoing transfers below the bank's smallest unit.
    pub rounding: MoneySum,
    /// Melted value beyond the cost of the fresh coins.
    pub surplus: MoneySum,
    /// Profit paid out. This is subtracted, since it is not income.
    pub(crate) drained: MoneySum,
}

impl Fees {
    /// Everything earned, whether or not it was paid out.
    ///
    /// # Errors
    /// When the sum overflows.
    pub fn earned(&self) -> Result<MoneySum, AmountError> {
        MoneySum::checked_sum([
            self.withdraw,
            self.deposit,
            self.refresh,
            self.refund,
            self.wire,
            self.closing,
            self.history,
            self.purse,
            self.account,
            self.rounding,
            self.surplus,
        ])
    }
}

impl Totals {
    /// Returns whether the books add up.
    #[must_use]
    pub fn conserved(&self) -> bool {
        self.explains(self.wired_in, self.wired_out)
    }

    /// Returns whether what came in is what went out, what is owed, and what was earned, to the last unit.
    #[must_use]
    pub fn explains(&self, wired_in: MoneySum, wired_out: MoneySum) -> bool {
        let right = MoneySum::checked_sum([wired_out].into_iter().chain(self.held()));
        let left = MoneySum::checked_sum([wired_in, self.overdrawn, self.overredeemed]);
        left.is_ok() && left == right
    }

    /// Returns whether everything owed is there: no profit was paid out that was not earned, and no coin redeemed that
    /// was not issued.
    #[must_use]
    pub fn is_solvent(&self) -> bool {
        self.overdrawn.is_zero() && self.overredeemed.is_zero()
    }

    /// Returns the sums that the exchange owes and has earned: everything that came in and has not been paid
    /// out.
    #[must_use]
    pub fn held(&self) -> [MoneySum; 6] {
        [self.reserves, self.outstanding, self.pending, self.purses, self.unrevealed_melts, self.fees]
    }
}

/// The reasons why a balance sheet cannot be drawn up.
#[derive(Debug, thiserror::Error)]
pub enum TotalsError {
    /// The store could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A term is below zero, for instance a coin that has more left than its value.
    #[error("{term}: {error}")]
    Amount {
        /// The term.
        term: &'static str,
        /// The error in it.
        error: AmountError,
    },
    /// Rows contradict each other.
    #[error("{0}")]
    Inconsistent(String),
}

trait Term<T> {
    fn term(self, term: &'static str) -> Result<T, TotalsError>;
}

impl<T> Term<T> for Result<T, AmountError> {
    fn term(self, term: &'static str) -> Result<T, TotalsError> {
        self.map_err(|error| TotalsError::Amount { term, error })
    }
}

/// Adds to a sum.
fn plus(sum: &mut MoneySum, amount: impl Into<MoneySum>, term: &'static str) -> Result<(), TotalsError> {
    *sum = sum.checked_add(amount).term(term)?;
    Ok(())
}

/// Calls `visit` for every row until it fails.
fn each<T: Table>(
    store: &Store,
    mut visit: impl FnMut(Found<T>) -> Result<(), TotalsError>,
) -> Result<(), TotalsError> {
    let mut outcome = Ok(());
    store.scan::<T>(|found| go_on(visit(found), &mut outcome))?;
    outcome
}

/// The value of a transfer's deposits, from their own rows.
#[derive(Default, Clone, Copy)]
struct Taken {
    contributed: MoneySum,
    fees: MoneySum,
}

struct Sheet<'a> {
    store: &'a Store,
    denoms: &'a DenomTable,
    totals: Totals,
    coins: HashMap<CoinPub, DenomSerial>,
    removed: Removed,
}

/// Transfers, closings and deposits that garbage collection or archiving has removed.
#[derive(Default, Clone, Copy)]
struct Removed {
    /// The transfers, by kind.
    transfers: [MoneySum; 3],
    /// The sum that the closings paid.
    closings: MoneySum,
    /// The sum of the decided transfers to merchants.
    merchants: MoneySum,
    /// Contributions to paid purses without deposits.
    purses: MoneySum,
}

/// Draws up the balance sheet. It scans the tables one after the other, so call it when no commands are
/// executed, or accept that it mixes moments. Needs memory for each known coin and each purse
/// (about 50 bytes), and for each melt.
///
/// # Errors
/// When the store cannot be read, or its rows cannot be added up.
pub fn totals(store: &Store, denoms: &DenomTable) -> Result<Totals, TotalsError> {
    let mut sheet = Sheet {
        store,
        denoms,
        totals: Totals::default(),
        coins: HashMap::new(),
        removed: Removed::default(),
    };
    sheet.collected()?;
    sheet.reserves()?;
    sheet.coins()?;
    sheet.refreshes()?;
    sheet.deposits()?;
    sheet.purses()?;
    sheet.transfers()?;
    let mut totals = sheet.totals;
    totals.outstanding = totals.issued.saturating_sub(totals.redeemed);
    totals.overredeemed = totals.redeemed.saturating_sub(totals.issued);
    totals.pending =
        MoneySum::checked_sum([totals.deposits, totals.transient, totals.in_flight]).term("pending")?;
    let (earned, drained) = (totals.income.earned().term("fees")?, totals.income.drained);
    totals.fees = earned.saturating_sub(drained);
    totals.overdrawn = drained.saturating_sub(earned);
    Ok(totals)
}

impl Sheet<'_> {
    fn terms(&self, serial: DenomSerial) -> Result<DenomTerms, TotalsError> {
        self.denoms
            .find(self.store, serial)?
            .ok_or_else(|| TotalsError::Inconsistent(format!("a row names denomination {}", serial.0)))
    }

    fn coin_terms(&self, coin_pub: &CoinPub) -> Result<DenomTerms, TotalsError> {
        match self.coins.get(coin_pub) {
            Some(serial) => self.terms(*serial),
            None => Err(TotalsError::Inconsistent(format!("a row names the unknown coin {coin_pub}"))),
        }
    }

    /// Adds the sums of rows that have been collected.
    fn collected(&mut self) -> Result<(), TotalsError> {
        let (mut totals, mut removed) = (self.totals, self.removed);
        each::<CollectedSums>(self.store, |found| {
            let income = &mut totals.income;
            let sum = match found.key.term {
                CollectedTerm::WiredIn => &mut totals.wired_in,
                CollectedTerm::Issued => &mut totals.issued,
                CollectedTerm::WithdrawFees => &mut income.withdraw,
                CollectedTerm::HistoryFees => &mut income.history,
                CollectedTerm::ClosingFees => &mut income.closing,
                CollectedTerm::ClosingRounding => &mut income.rounding,
                CollectedTerm::ClosingsPaid => &mut removed.closings,
                CollectedTerm::AccountFees => &mut income.account,
                CollectedTerm::PurseFees => &mut income.purse,
                CollectedTerm::MerchantTransfers => &mut removed.transfers[0],
                CollectedTerm::ClosingTransfers => &mut removed.transfers[1],
                CollectedTerm::DrainTransfers => &mut removed.transfers[2],
                CollectedTerm::Redeemed => &mut totals.redeemed,
                CollectedTerm::RefreshFees => &mut income.refresh,
                CollectedTerm::Surplus => &mut income.surplus,
                CollectedTerm::DepositFees => &mut income.deposit,
                CollectedTerm::RefundFees => &mut income.refund,
                CollectedTerm::WireFees => &mut income.wire,
                CollectedTerm::MerchantRounding => &mut income.rounding,
                CollectedTerm::MerchantsPaid => &mut removed.merchants,
                CollectedTerm::PursePayments => &mut removed.purses,
            };
            plus(sum, found.row.sum(), "collected")
        })?;
        totals.wired_out = MoneySum::checked_sum(removed.transfers).term("collected")?;
        (self.totals, self.removed) = (totals, removed);
        Ok(())
    }

    fn reserves(&mut self) -> Result<(), TotalsError> {
        let mut totals = self.totals;
        each::<ReservesIn>(self.store, |found| plus(&mut totals.wired_in, found.row.amount, "wired_in"))?;
        each::<Reserves>(self.store, |found| plus(&mut totals.reserves, found.row.balance, "reserves"))?;
        each::<Withdrawals>(self.store, |found| {
            let terms = self.terms(found.row.denom)?;
            plus(&mut totals.issued, terms.value, "issued")?;
            plus(&mut totals.income.withdraw, terms.fee_withdraw, "withdraw fees")
        })?;
        each::<HistoryRequests>(self.store, |found| {
            plus(&mut totals.income.history, found.row.fee, "history fees")
        })?;
        each::<Closings>(self.store, |found| {
            plus(&mut totals.income.closing, found.row.fee, "closing fees")?;
            let rest = found.row.amount.checked_sub(found.row.fee).term("closing")?;
            plus(&mut totals.income.rounding, rest.checked_sub(found.row.paid).term("closing")?, "rounding")
        })?;
        self.totals = totals;
        Ok(())
    }

    fn coins(&mut self) -> Result<(), TotalsError> {
        let mut totals = self.totals;
        let mut coins = HashMap::new();
        each::<Coins>(self.store, |found| {
            let value = self.terms(found.row.denom)?.value;
            plus(&mut totals.redeemed, value.checked_sub(found.row.remaining).term("coin")?, "redeemed")?;
            coins.insert(found.key.coin_pub, found.row.denom);
            Ok(())
        })?;
        self.totals = totals;
        self.coins = coins;
        Ok(())
    }

    fn refreshes(&mut self) -> Result<(), TotalsError> {
        let mut totals = self.totals;
        let mut melted: HashMap<MeltKey, Money> = HashMap::new();
        each::<Melts>(self.store, |found| {
            let fee = self.coin_terms(&found.key.coin_pub)?.fee_refresh;
            plus(&mut totals.income.refresh, fee, "melt fees")?;
            let left = found.row.amount.checked_sub(fee).term("melt")?;
            melted.insert(found.key, left);
            Ok(())
        })?;
        each::<Reveals>(self.store, |found| {
            let mut left = melted
                .remove(&found.key)
                .ok_or_else(|| TotalsError::Inconsistent("a reveal without melt".to_owned()))?;
            for coin in &found.row.fresh.0 {
                let terms = self.terms(coin.denom)?;
                plus(&mut totals.issued, terms.value, "issued")?;
                plus(&mut totals.income.withdraw, terms.fee_withdraw, "withdraw fees")?;
                left = left
                    .checked_sub(terms.value)
                    .and_then(|left| left.checked_sub(terms.fee_withdraw))
                    .term("reveal")?;
            }
            plus(&mut totals.income.surplus, left, "surplus")
        })?;
        for left in melted.into_values() {
            plus(&mut totals.unrevealed_melts, left, "unrevealed melts")?;
        }
        self.totals = totals;
        Ok(())
    }

    fn deposits(&mut self) -> Result<(), TotalsError> {
        let mut totals = self.totals;
        let mut taken: HashMap<Wtid, Taken> = HashMap::new();
        each::<ArchiveTransfers>(self.store, |found| {
            let sums = Taken { contributed: found.row.contributed(), fees: found.row.fees() };
            taken.insert(found.key.wtid, sums);
            Ok(())
        })?;
        each::<Deposits>(self.store, |found| {
            let net = found.row.amount.checked_sub(found.row.refunded).term("deposit")?;
            let Some(wtid) = found.row.wtid else {
                return plus(&mut totals.deposits, net, "deposits");
            };
            let taken = taken.entry(wtid).or_default();
            plus(&mut taken.contributed, net, "aggregated deposits")?;
            if net.is_zero() {
                return Ok(());
            }
            plus(&mut taken.fees, self.terms(found.row.denom)?.fee_deposit, "deposit fees")
        })?;
        each::<Refunds>(self.store, |found| {
            plus(&mut totals.income.refund, self.coin_terms(&found.key.coin_pub)?.fee_refund, "refund fees")
        })?;
        each::<WireOut>(self.store, |found| {
            let taken = taken
                .remove(&found.key.wtid)
                .ok_or_else(|| TotalsError::Inconsistent("a transfer without deposits".to_owned()))?;
            let row = found.row;
            plus(&mut totals.income.wire, row.wire_fee, "wire fees")?;
            let rest = taken
                .contributed
                .checked_sub(row.amount)
                .and_then(|rest| rest.checked_sub(row.wire_fee))
                .term("transfer")?;
            // The rest consists of deposit fees first, and then rounding. Fees that the deposits could not
            // pay were waived.
            let fees = taken.fees.min(rest);
            plus(&mut totals.income.deposit, fees, "deposit fees")?;
            plus(&mut totals.income.rounding, rest.checked_sub(fees).term("rounding")?, "rounding")
        })?;
        each::<Aggregates>(self.store, |found| {
            let taken = taken.remove(&found.row.wtid).unwrap_or_default();
            plus(&mut totals.transient, found.row.total, "transient")?;
            let fees = taken.contributed.checked_sub(found.row.total).term("transient")?;
            if fees > taken.fees {
                return Err(TotalsError::Inconsistent("a transient aggregate lost money".to_owned()));
            }
            plus(&mut totals.income.deposit, fees, "deposit fees")
        })?;
        if !taken.is_empty() {
            return Err(TotalsError::Inconsistent("aggregated deposits without transfer".to_owned()));
        }
        self.totals = totals;
        Ok(())
    }

    fn purses(&mut self) -> Result<(), TotalsError> {
        let mut totals = self.totals;
        // Not the purses' own sums, which the rules keep, but their deposits.
        let mut contributed: HashMap<PursePub, MoneySum> = HashMap::new();
        let mut moved = MoneySum::ZERO;
        each::<PurseDeposits>(self.store, |found| {
            if found.row.refunded {
                return Ok(());
            }
            plus(contributed.entry(found.key.purse_pub).or_default(), found.row.amount, "purse")
        })?;
        each::<Purses>(self.store, |found| {
            let held = match contributed.remove(&found.key.purse_pub) {
                // The deposits of a paid purse may have left for an archive.
                None if found.row.state == PurseState::Paid => {
                    plus(&mut moved, found.row.contributed, "purse")?;
                    found.row.contributed.into()
                }
                held => held.unwrap_or_default(),
            };
            plus(&mut totals.income.purse, found.row.purse_fee, "purse fees")?;
            match found.row.state {
                PurseState::Open => plus(&mut totals.purses, held, "purses"),
                PurseState::Paid => {
                    let rest = held.checked_sub(found.row.target).term("paid purse")?;
                    plus(&mut totals.income.purse, rest, "purse fees")
                }
                PurseState::Expired | PurseState::Deleted if held.is_zero() => Ok(()),
                PurseState::Expired | PurseState::Deleted => {
                    Err(TotalsError::Inconsistent("a refunded purse holds money".to_owned()))
                }
            }
        })?;
        if !contributed.is_empty() {
            return Err(TotalsError::Inconsistent("deposits into an unknown purse".to_owned()));
        }
        if moved != self.removed.purses {
            return Err(TotalsError::Inconsistent("paid purses without deposits".to_owned()));
        }
        each::<ReserveOpens>(self.store, |found| {
            plus(&mut totals.income.account, found.row.payment, "account fees")
        })?;
        each::<ReserveOpenDeposits>(self.store, |found| {
            plus(&mut totals.income.account, found.row.amount, "account fees")
        })?;
        self.totals = totals;
        Ok(())
    }

    fn transfers(&mut self) -> Result<(), TotalsError> {
        let mut totals = self.totals;
        let mut by_kind = self.removed.transfers;
        each::<Prepared>(self.store, |found| {
            let kind = match found.row.kind {
                TransferKind::Aggregate => 0,
                TransferKind::Closing => 1,
                TransferKind::Drain => 2,
            };
            plus(&mut by_kind[kind], found.row.amount, "transfers")?;
            if found.row.finished.is_some() {
                plus(&mut totals.wired_out, found.row.amount, "wired_out")
            } else {
                plus(&mut totals.in_flight, found.row.amount, "in_flight")
            }
        })?;
        // Each decision to pay has one transfer of exactly that amount.
        let mut decided = [self.removed.merchants, self.removed.closings, MoneySum::ZERO];
        each::<WireOut>(self.store, |found| plus(&mut decided[0], found.row.amount, "wire_out"))?;
        each::<Closings>(self.store, |found| plus(&mut decided[1], found.row.paid, "closings"))?;
        each::<Drains>(self.store, |found| {
            if found.row.executed {
                plus(&mut decided[2], found.row.amount, "drains")?;
            }
            Ok(())
        })?;
        if decided != by_kind {
            return Err(TotalsError::Inconsistent(format!(
                "decided transfers {decided:?} differ from prepared ones {by_kind:?}"
            )));
        }
        totals.income.drained = decided[2];
        self.totals = totals;
        Ok(())
    }
}
