//! Units of rows that leave for an archive together.

use batzen_crypto::Wtid;
use batzen_store::{Change, Record, Table, TableDef};
use batzen_tables::exchange::{
    CoinKey, CoinPub, CoinRow, Coins, DenomSerial, DepositKey, DepositRow, Deposits, MeltByRc, MeltByRcRow,
    MeltKey, MeltRow, Melts, Prepared, PreparedRow, PurseDepositKey, PurseDepositRow, PurseDeposits,
    PursePub, RcKey, RecoupKey, RecoupRefreshCreditKey, RecoupRefreshCreditRow, RecoupRefreshCredits,
    RecoupRefreshRow, RecoupRefreshes, RecoupRow, Recoups, RefundKey, RefundRow, Refunds,
    ReserveOpenDepositKey, ReserveOpenDepositRow, ReserveOpenDeposits, RevealRow, Reveals, WireOut,
    WireOutRow, WtidKey,
};

/// Rows of one table with their keys, in the order of keys.
pub type Rows<T> = Vec<(<T as Table>::Key, <T as Table>::Row)>;

/// Rows that leave together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArchiveUnit {
    /// Deposits of a transfer.
    Transfer(Box<TransferPart>),
    /// The deposits into a purse.
    Purse(PurseCoins),
    /// A coin.
    Coin(Box<CoinFile>),
}

/// Deposits of a transfer to a merchant with their refunds, and with the last of them the transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferPart {
    /// The transfer's identifier.
    pub wtid: Wtid,
    /// The transfer, with its last deposits.
    pub wire_out: Option<WireOutRow>,
    /// The request to the bank, unless garbage collection has removed it; with the last deposits.
    pub prepared: Option<PreparedRow>,
    /// The deposits.
    pub deposits: Vec<(DepositKey, DepositRow)>,
    /// Their refunds.
    pub refunds: Vec<(RefundKey, RefundRow)>,
}

/// The deposits into a purse that was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurseCoins {
    /// The purse.
    pub purse_pub: PursePub,
    /// The deposits.
    pub deposits: Vec<(PurseDepositKey, PurseDepositRow)>,
}

/// A coin with all rows that are only about it, except payments, which leave before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoinFile {
    /// The coin's key.
    pub(crate) coin_pub: CoinPub,
    pub(crate) coin: CoinRow,
    pub(crate) melts: Vec<(MeltKey, MeltRow)>,
    /// Where reveals find its melts.
    pub(crate) melts_by_rc: Vec<(RcKey, MeltByRcRow)>,
    pub(crate) reveals: Vec<(MeltKey, RevealRow)>,
    pub(crate) recoups: Vec<(RecoupKey, RecoupRow)>,
    /// Its recoups to an old coin.
    pub(crate) recoup_refreshes: Vec<(RecoupKey, RecoupRefreshRow)>,
    /// The credits that came back to it from fresh coins.
    pub(crate) recoup_credits: Vec<(RecoupRefreshCreditKey, RecoupRefreshCreditRow)>,
    /// Its payments for reserves.
    pub(crate) reserve_opens: Vec<(ReserveOpenDepositKey, ReserveOpenDepositRow)>,
}

/// A row on its way to an archive.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ArchivedRow {
    pub(crate) table: &'static TableDef,
    pub(crate) key: Vec<u8>,
    /// Its content.
    pub(crate) row: Vec<u8>,
    /// Its denomination; 0 if it has none.
    pub(crate) denom: DenomSerial,
    /// Its amount, in hundred-millionths. That of a coin, what it has spent, depends on its value: it is zero here.
    pub(crate) units: u128,
}

/// Rows may hold secrets of others, so only the table is printed.
impl std::fmt::Debug for ArchivedRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a row of {}", self.table.name)
    }
}

impl ArchivedRow {
    fn of<T: Table>(key: &T::Key, row: &T::Row, denom: DenomSerial, units: u128) -> Self {
        Self { table: T::DEF, key: key.to_bytes(), row: row.to_bytes(), denom, units }
    }

    /// Its bytes, key included.
    pub(crate) fn bytes(&self) -> u64 {
        (self.key.len() + self.row.len()) as u64
    }

    /// The change that adds it to an archive.
    #[must_use]
    pub(crate) fn into_insert(self) -> Change {
        Change::Insert { table: self.table, key: self.key, row: self.row }
    }

    /// The change that removes it from an archive again.
    #[must_use]
    pub(crate) fn into_delete(self) -> Change {
        Change::Delete { table: self.table, key: self.key, old_row: self.row, version: None }
    }
}

/// The denomination of rows that have none.
const NO_DENOMINATION: DenomSerial = DenomSerial(0);

impl ArchiveUnit {
    pub(crate) fn rows(&self) -> Vec<ArchivedRow> {
        match self {
            Self::Transfer(part) => part.rows(),
            Self::Purse(coins) => coins.rows(),
            Self::Coin(file) => file.rows(),
        }
    }

    /// Number of rows that it has.
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Transfer(part) => {
                part.deposits.len()
                    + part.refunds.len()
                    + usize::from(part.wire_out.is_some())
                    + usize::from(part.prepared.is_some())
            }
            Self::Purse(coins) => coins.deposits.len(),
            Self::Coin(file) => file.count(),
        }
    }
}

impl TransferPart {
    fn rows(&self) -> Vec<ArchivedRow> {
        let key = WtidKey { wtid: self.wtid };
        let mut rows = Vec::with_capacity(self.deposits.len() + self.refunds.len() + 2);
        for (key, row) in &self.deposits {
            rows.push(ArchivedRow::of::<Deposits>(key, row, row.denom, row.amount.units()));
        }
        for (key, row) in &self.refunds {
            let of = self.deposits.iter().find(|(deposit, _)| *deposit == key.deposit());
            let denom = of.map_or(NO_DENOMINATION, |(_, deposit)| deposit.denom);
            rows.push(ArchivedRow::of::<Refunds>(key, row, denom, row.amount.units()));
        }
        if let Some(row) = &self.wire_out {
            rows.push(ArchivedRow::of::<WireOut>(&key, row, NO_DENOMINATION, row.amount.units()));
        }
        if let Some(row) = &self.prepared {
            rows.push(ArchivedRow::of::<Prepared>(&key, row, NO_DENOMINATION, row.amount.units()));
        }
        rows
    }
}

impl PurseCoins {
    fn rows(&self) -> Vec<ArchivedRow> {
        let row = |(key, row): &(PurseDepositKey, PurseDepositRow)| {
            ArchivedRow::of::<PurseDeposits>(key, row, row.denom, row.amount.units())
        };
        self.deposits.iter().map(row).collect()
    }
}

impl CoinFile {
    fn rows(&self) -> Vec<ArchivedRow> {
        let denom = self.coin.denom;
        let mut rows = Vec::with_capacity(self.count());
        rows.push(ArchivedRow::of::<Coins>(&CoinKey { coin_pub: self.coin_pub }, &self.coin, denom, 0));
        for (key, row) in &self.melts {
            rows.push(ArchivedRow::of::<Melts>(key, row, denom, row.amount.units()));
        }
        for (key, row) in &self.melts_by_rc {
            rows.push(ArchivedRow::of::<MeltByRc>(key, row, denom, 0));
        }
        for (key, row) in &self.reveals {
            rows.push(ArchivedRow::of::<Reveals>(key, row, denom, 0));
        }
        for (key, row) in &self.recoups {
            rows.push(ArchivedRow::of::<Recoups>(key, row, denom, row.amount.units()));
        }
        for (key, row) in &self.recoup_refreshes {
            rows.push(ArchivedRow::of::<RecoupRefreshes>(key, row, denom, row.amount.units()));
        }
        for (key, row) in &self.recoup_credits {
            rows.push(ArchivedRow::of::<RecoupRefreshCredits>(key, row, denom, row.amount.units()));
        }
        for (key, row) in &self.reserve_opens {
            rows.push(ArchivedRow::of::<ReserveOpenDeposits>(key, row, denom, row.amount.units()));
        }
        rows
    }

    /// Number of rows that it has.
    pub(crate) fn count(&self) -> usize {
        1 + self.melts.len()
            + self.melts_by_rc.len()
            + self.reveals.len()
            + self.recoups.len()
            + self.recoup_refreshes.len()
            + self.recoup_credits.len()
            + self.reserve_opens.len()
    }
}

batzen_protocol::enumeration! {
    /// Why rows stay in the store.
    pub enum Stays {
        /// The legal time of a denomination is not over.
        Young => "young",
        /// The bank has not accepted the transfer, or not long ago.
        Unpaid => "unpaid",
        /// The purse is open, or was decided a moment ago.
        Undecided => "undecided",
        /// Payments of the coin are still in the store.
        Payments => "payments",
        /// A melt was not revealed, so its value is still owed.
        Unrevealed => "unrevealed",
        /// A fresh coin of a refresh may still need it.
        FreshCoin => "fresh_coin",
        /// It has more rows than one commit should remove.
        Large => "large",
        /// The rows differ from the copy: somebody has changed them in between.
        Changed => "changed",
    }
}

impl Stays {
    /// The reason in words.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Young => "legal time not over",
            Self::Unpaid => "transfer not executed long ago",
            Self::Undecided => "purse open",
            Self::Payments => "coin with payments that stay",
            Self::Unrevealed => "melt not revealed",
            Self::FreshCoin => "fresh coins may need it",
            Self::Large => "too many rows",
            Self::Changed => "changed meanwhile",
        }
    }
}
