//! Liabilities that follow from the exchange's rows: a leaf for each blind signature and each use of a coin.

use std::collections::{BTreeMap, HashMap};

use batzen_protocol::liabilities::{Kind, Leaf, leaf};
use batzen_protocol::{AmountError, Money, Timestamp};
use batzen_store::{Found, FrozenRows, Store, StoreError, Table, TableDef, go_on};
use batzen_tables::exchange::{
    CoinPub, Coins, DenomRow, DenomSerial, Denominations, Deposits, Melts, PurseDeposits, RecoupRefreshes,
    Recoups, Refunds, ReserveOpenDeposits, Reveals, Withdrawals,
};

/// The tables that are read, at one moment.
const TABLES: [&TableDef; 11] = [
    Denominations::DEF,
    Withdrawals::DEF,
    Reveals::DEF,
    Coins::DEF,
    Deposits::DEF,
    Melts::DEF,
    Recoups::DEF,
    RecoupRefreshes::DEF,
    PurseDeposits::DEF,
    ReserveOpenDeposits::DEF,
    Refunds::DEF,
];

/// Why the rows cannot be counted.
#[derive(Debug, thiserror::Error)]
pub enum RowsError {
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A row names a coin or a denomination that is not there.
    #[error("a row of {0} names a coin or denomination that is not there")]
    Missing(&'static str),
    /// An amount is impossible.
    #[error("a row of {0} has an impossible amount: {1}")]
    Amount(&'static str, AmountError),
}

/// A view of the rows of one moment.
pub(super) struct View(Box<dyn FrozenRows>);

/// The leaves of a denomination, in any order, perhaps some of them twice.
#[derive(Debug, Default)]
pub(super) struct Leaves {
    issued: Vec<Leaf>,
    redeemed: Vec<Leaf>,
    returned: Vec<Leaf>,
}

impl Leaves {
    fn of(&mut self, kind: Kind) -> &mut Vec<Leaf> {
        match kind {
            Kind::Issued => &mut self.issued,
            Kind::Redeemed => &mut self.redeemed,
            Kind::Returned => &mut self.returned,
        }
    }

    /// The sum of all leaves, each as often as it is there.
    pub(super) fn owed(&self) -> i128 {
        let sum = |leaves: &[Leaf]| -> i128 {
            leaves.iter().map(|leaf| i128::try_from(leaf.sum.units()).expect("amounts are below 2^80")).sum()
        };
        sum(&self.issued) + sum(&self.returned) - sum(&self.redeemed)
    }

    /// Takes the leaves of a kind, sorted, each once.
    pub(super) fn take(&mut self, kind: Kind) -> Vec<Leaf> {
        let mut leaves = std::mem::take(self.of(kind));
        leaves.sort_unstable();
        leaves.dedup();
        leaves
    }
}

/// A denomination with its leaves.
pub(super) struct Counted {
    pub(super) row: DenomRow,
    pub(super) leaves: Leaves,
}

struct Counter {
    denoms: BTreeMap<DenomSerial, Counted>,
    /// Denominations past their legal end: their rows may leave the store, and do not count any more.
    over: Vec<DenomSerial>,
    coins: HashMap<CoinPub, DenomSerial>,
}

impl Counter {
    fn add(
        &mut self,
        denom: DenomSerial,
        kind: Kind,
        hash: batzen_crypto::ShortHash,
        amount: Money,
        table: &'static TableDef,
    ) -> Result<(), RowsError> {
        match self.denoms.get_mut(&denom) {
            Some(counted) => {
                counted.leaves.of(kind).push(Leaf { hash, sum: amount.into() });
                Ok(())
            }
            None if self.over.contains(&denom) => Ok(()),
            None => Err(RowsError::Missing(table.name)),
        }
    }

    fn of_coin(&self, coin: &CoinPub, table: &'static TableDef) -> Result<DenomSerial, RowsError> {
        self.coins.get(coin).copied().ok_or(RowsError::Missing(table.name))
    }

    fn terms(&self, denom: DenomSerial) -> Option<&DenomRow> {
        self.denoms.get(&denom).map(|counted| &counted.row)
    }
}

impl View {
    /// The rows as they are now.
    pub(super) fn new(store: &Store) -> Result<Self, StoreError> {
        Ok(Self(store.freeze(&TABLES)?))
    }

    fn each<T: Table>(
        &self,
        mut visit: impl FnMut(Found<T>) -> Result<(), RowsError>,
    ) -> Result<(), RowsError> {
        let mut outcome = Ok(());
        self.0.scan(T::DEF, &mut |record| {
            go_on(Found::<T>::decode(record).map_err(RowsError::from).and_then(&mut visit), &mut outcome)
        })?;
        outcome
    }

    /// The leaves of all denominations whose legal end is after `end`.
    pub(super) fn count(&self, end: Timestamp) -> Result<Vec<Counted>, RowsError> {
        use Kind::{Issued, Redeemed, Returned};
        let mut all = Counter { denoms: BTreeMap::new(), over: Vec::new(), coins: HashMap::new() };
        self.each::<Denominations>(|found| {
            if found.row.expire_legal > end {
                let counted = Counted { row: found.row, leaves: Leaves::default() };
                all.denoms.insert(found.key.serial, counted);
            } else {
                all.over.push(found.key.serial);
            }
            Ok(())
        })?;
        self.each::<Withdrawals>(|found| {
            let denom = found.row.denom;
            let Some(terms) = all.terms(denom) else {
                return all.add(denom, Issued, Default::default(), Money::ZERO, Withdrawals::DEF);
            };
            let (hash, value) = (leaf::issued(&terms.h_denom_pub, &found.key.h_coin_ev), terms.value);
            all.add(denom, Issued, hash, value, Withdrawals::DEF)
        })?;
        self.each::<Reveals>(|found| {
            for coin in &found.row.fresh.0 {
                let Some(terms) = all.terms(coin.denom) else {
                    all.add(coin.denom, Issued, Default::default(), Money::ZERO, Reveals::DEF)?;
                    continue;
                };
                let (hash, value) = (leaf::issued(&terms.h_denom_pub, &coin.h_coin_ev), terms.value);
                all.add(coin.denom, Issued, hash, value, Reveals::DEF)?;
            }
            Ok(())
        })?;
        self.each::<Coins>(|found| {
            all.coins.insert(found.key.coin_pub, found.row.denom);
            Ok(())
        })?;
        self.each::<Deposits>(|found| {
            let hash =
                leaf::deposit(&found.key.coin_pub, &found.key.merchant_pub, &found.key.h_contract_terms);
            all.add(found.row.denom, Redeemed, hash, found.row.amount, Deposits::DEF)
        })?;
        self.each::<Melts>(|found| {
            let denom = all.of_coin(&found.key.coin_pub, Melts::DEF)?;
            let hash = leaf::melt(&found.key.coin_pub, &found.key.rc);
            all.add(denom, Redeemed, hash, found.row.amount, Melts::DEF)
        })?;
        self.each::<Recoups>(|found| {
            let denom = all.of_coin(&found.key.coin_pub, Recoups::DEF)?;
            let hash = leaf::recoup(&found.key.coin_pub, &found.row.h_coin_ev, found.key.n);
            all.add(denom, Redeemed, hash, found.row.amount, Recoups::DEF)
        })?;
        self.each::<RecoupRefreshes>(|found| {
            let (key, row) = (&found.key, &found.row);
            let (fresh, old) = (
                all.of_coin(&key.coin_pub, RecoupRefreshes::DEF)?,
                all.of_coin(&row.old_coin_pub, RecoupRefreshes::DEF)?,
            );
            let hash = leaf::recoup_refresh(&key.coin_pub, &row.h_coin_ev, key.n);
            all.add(fresh, Redeemed, hash, row.amount, RecoupRefreshes::DEF)?;
            let hash = leaf::recoup_credit(&row.old_coin_pub, &key.coin_pub, &row.h_coin_ev, key.n);
            all.add(old, Returned, hash, row.amount, RecoupRefreshes::DEF)
        })?;
        self.each::<PurseDeposits>(|found| {
            let (key, row) = (&found.key, &found.row);
            let hash = leaf::purse_deposit(&key.coin_pub, &key.purse_pub);
            all.add(row.denom, Redeemed, hash, row.amount, PurseDeposits::DEF)?;
            if row.refunded {
                let hash = leaf::purse_refund(&key.coin_pub, &key.purse_pub);
                all.add(row.denom, Returned, hash, row.amount, PurseDeposits::DEF)?;
            }
            Ok(())
        })?;
        self.each::<ReserveOpenDeposits>(|found| {
            let key = &found.key;
            let denom = all.of_coin(&key.coin_pub, ReserveOpenDeposits::DEF)?;
            let hash = leaf::reserve_open(&key.coin_pub, &key.reserve_pub, key.request_time);
            all.add(denom, Redeemed, hash, found.row.amount, ReserveOpenDeposits::DEF)
        })?;
        self.each::<Refunds>(|found| {
            let key = &found.key;
            let denom = all.of_coin(&key.coin_pub, Refunds::DEF)?;
            // The fee stays with the exchange.
            let fee = all.terms(denom).map_or(Money::ZERO, |terms| terms.fee_refund);
            let back = found.row.amount.checked_sub(fee);
            let back = back.map_err(|error| RowsError::Amount(Refunds::DEF.name, error))?;
            let (contract, id) = (&key.h_contract_terms, key.rtransaction_id);
            let hash = leaf::refund(&key.coin_pub, &key.merchant_pub, contract, id);
            all.add(denom, Returned, hash, back, Refunds::DEF)
        })?;
        let mut counted: Vec<_> = all.denoms.into_values().collect();
        counted.sort_by_key(|counted| counted.row.h_denom_pub);
        Ok(counted)
    }
}
