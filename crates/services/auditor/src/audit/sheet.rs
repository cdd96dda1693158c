//! The balance sheet: what came in is what went out, what is owed, and what was earned.
//!
//! Every term is a sum over rows. `wired_in = wired_out + reserves + outstanding + pending + purses +
//! unrevealed_melts + fees`, to the last unit. The exchange's own totals have the same terms; this is a second
//! computation from the books, which share no code with them.

use batzen_protocol::Currency;
use batzen_tables::exchange::CollectedTerm;
use serde::{Serialize, Serializer};

use crate::audit::books::{Tally, Way};
use crate::audit::terms::Subject;

/// An amount that may be negative, in units of 10⁻⁸.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Net {
    /// The units.
    pub units: i128,
    pub(crate) currency: Option<Currency>,
}

impl std::fmt::Display for Net {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let magnitude = batzen_protocol::MoneySum::from_units(self.units.unsigned_abs());
        let currency = self.currency.as_ref().map_or("", Currency::as_str);
        let sign = if self.units < 0 { "-" } else { "" };
        write!(f, "{sign}{currency}:{magnitude}")
    }
}

impl Serialize for Net {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The terms of the balance sheet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Sheet {
    /// Incoming transfers booked.
    pub wired_in: Net,
    /// Outgoing transfers that the bank accepted.
    pub wired_out: Net,
    /// Balances of reserves.
    pub reserves: Net,
    /// Values of all coins signed.
    pub issued: Net,
    /// The sum that known coins have spent.
    pub redeemed: Net,
    /// issued − redeemed: what coins in wallets are worth.
    pub outstanding: Net,
    /// Deposits not aggregated yet.
    pub deposits: Net,
    /// Aggregates that wait to be paid.
    pub transient: Net,
    /// Transfers decided, but not accepted by the bank yet.
    pub in_flight: Net,
    /// Contributions to open purses.
    pub purses: Net,
    /// Melted value that is not revealed.
    pub unrevealed_melts: Net,
    /// Income that is not paid out.
    pub fees: Net,
    /// Profit paid out.
    pub drained: Net,
}

impl Sheet {
    /// The exchange's liability: everything but its own income.
    pub(crate) fn liability(&self) -> Net {
        let owed = [
            self.reserves,
            self.outstanding,
            self.deposits,
            self.transient,
            self.in_flight,
            self.purses,
            self.unrevealed_melts,
        ];
        Net { units: owed.iter().map(|term| term.units).sum(), currency: self.wired_in.currency }
    }

    /// Everything that was earned, whether or not it was paid out.
    #[must_use]
    pub fn income(&self) -> Net {
        Net { units: self.fees.units + self.drained.units, ..self.fees }
    }

    /// The balance that the bank should hold for the exchange.
    pub(crate) fn expected_balance(&self) -> Net {
        Net { units: self.wired_in.units - self.wired_out.units, ..self.wired_in }
    }

    /// Returns the surplus of what came in over what is accounted for; zero if the books add up.
    #[must_use]
    pub fn difference(&self) -> Net {
        let accounted = self.liability().units + self.fees.units;
        Net { units: self.expected_balance().units - accounted, ..self.wired_in }
    }
}

/// Sums over objects, in units of 10⁻⁸, where a row alone does not say what it adds.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ObjectSums {
    /// Melts without reveal, less their fees.
    pub(crate) unrevealed: i128,
    pub(crate) melt_fees: i128,
    /// The value that refreshes did not use.
    pub(crate) surplus: i128,
    /// The money in open purses.
    pub(crate) purses: i128,
    /// Number of purses that are open.
    pub(crate) purses_open: i128,
    /// The income from paid purses.
    pub(crate) purse_income: i128,
    /// Contributions to paid purses whose deposits are archived.
    pub(crate) purses_moved: i128,
    /// Aggregates that wait.
    pub(crate) transient: i128,
    /// Deposit fees of aggregated deposits.
    pub(crate) deposit_fees: i128,
    pub(crate) wire_fees: i128,
    /// The sum by which transfers were rounded down.
    pub(crate) wire_rounding: i128,
    /// Decided transfers without an order, by kind.
    pub(crate) unordered: [i128; 3],
}

impl ObjectSums {
    /// Adds other sums, or takes them off.
    pub(crate) fn combine(&mut self, other: &Self, way: Way) {
        let one = i128::from(way.one());
        self.unrevealed += one * other.unrevealed;
        self.melt_fees += one * other.melt_fees;
        self.surplus += one * other.surplus;
        self.purses += one * other.purses;
        self.purses_open += one * other.purses_open;
        self.purse_income += one * other.purse_income;
        self.purses_moved += one * other.purses_moved;
        self.transient += one * other.transient;
        self.deposit_fees += one * other.deposit_fees;
        self.wire_fees += one * other.wire_fees;
        self.wire_rounding += one * other.wire_rounding;
        for (sum, other) in self.unordered.iter_mut().zip(other.unordered) {
            *sum += one * other;
        }
    }
}

/// The balance sheet of these sums.
pub(crate) fn sheet(subject: &Subject, tally: &Tally, objects: &ObjectSums) -> Sheet {
    let (sums, collected) = (&tally.sums, |term: CollectedTerm| tally.sums.collected[term as usize]);
    let redeemed: i128 = tally.denoms.values().map(|denom| denom.redeemed).sum();
    let net = |units| Net { units, currency: Some(subject.currency) };
    let issued = sums.issued + collected(CollectedTerm::Issued);
    let redeemed = redeemed + collected(CollectedTerm::Redeemed);
    let removed_transfers = collected(CollectedTerm::MerchantTransfers)
        + collected(CollectedTerm::ClosingTransfers)
        + collected(CollectedTerm::DrainTransfers);
    let income = sums.withdraw_fees
        + collected(CollectedTerm::WithdrawFees)
        + objects.deposit_fees
        + collected(CollectedTerm::DepositFees)
        + objects.melt_fees
        + collected(CollectedTerm::RefreshFees)
        + sums.refund_fees
        + collected(CollectedTerm::RefundFees)
        + objects.wire_fees
        + collected(CollectedTerm::WireFees)
        + sums.closing_fees
        + collected(CollectedTerm::ClosingFees)
        + sums.history_fees
        + collected(CollectedTerm::HistoryFees)
        + objects.purse_income
        + collected(CollectedTerm::PurseFees)
        + sums.account_fees
        + collected(CollectedTerm::AccountFees)
        + sums.closing_rounding
        + collected(CollectedTerm::ClosingRounding)
        + objects.wire_rounding
        + collected(CollectedTerm::MerchantRounding)
        + objects.surplus
        + collected(CollectedTerm::Surplus);
    Sheet {
        wired_in: net(sums.wired_in + collected(CollectedTerm::WiredIn)),
        wired_out: net(sums.wired_out + removed_transfers),
        reserves: net(sums.reserves),
        issued: net(issued),
        redeemed: net(redeemed),
        outstanding: net(issued - redeemed),
        deposits: net(sums.open_deposits),
        transient: net(objects.transient),
        in_flight: net(sums.in_flight),
        purses: net(objects.purses),
        unrevealed_melts: net(objects.unrevealed),
        fees: net(income - sums.drained),
        drained: net(sums.drained),
    }
}
