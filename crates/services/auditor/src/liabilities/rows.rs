//! The expected leaves, by the auditor's own reading of the exchange's rows. It shares nothing with the exchange's
//! worker but the definition of a leaf.

use std::collections::{BTreeMap, HashMap};

use batzen_crypto::{EddsaPublicKey, HashCode, ShortHash};
use batzen_protocol::Timestamp;
use batzen_protocol::liabilities::{Kind, leaf};
use batzen_store::{Found, FrozenRows, Store, StoreError, Table, go_on};
use batzen_tables::exchange::{
    Coins, DenomRow, DenomSerial, Denominations, Deposits, Melts, PurseDeposits, RecoupRefreshes, Recoups,
    Refunds, ReserveOpenDeposits, Reveals, Withdrawals,
};

/// A leaf that must be published.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Due {
    /// Its amount, in units of 10⁻⁸.
    pub(super) units: u128,
    /// When the exchange made the row. Some rows have no date.
    pub(super) date: Option<Timestamp>,
    pub(super) table: &'static str,
    pub(super) serial: u64,
}

/// All leaves by denomination and kind.
pub(crate) type Ledger = HashMap<(HashCode, Kind), HashMap<ShortHash, Due>>;

/// The sums by the rows.
pub(crate) struct Rows {
    pub(super) denoms: BTreeMap<HashCode, DenomRow>,
    pub(super) ledger: Ledger,
    /// Rows that name a coin or a denomination that is not there, or with an impossible amount.
    pub(super) faults: Vec<String>,
}

struct Reader {
    rows: Box<dyn FrozenRows>,
    terms: BTreeMap<DenomSerial, DenomRow>,
    owners: HashMap<EddsaPublicKey, DenomSerial>,
    ledger: Ledger,
    faults: Vec<String>,
}

impl Reader {
    fn all<T: Table>(&self) -> Result<Vec<Found<T>>, StoreError> {
        let mut found = Vec::new();
        let mut failed = Ok(());
        self.rows.scan(T::DEF, &mut |record| {
            go_on(Found::<T>::decode(record).map(|row| found.push(row)), &mut failed)
        })?;
        failed.map(|()| found)
    }

    fn fault<T: Table>(&mut self, serial: u64) {
        self.faults.push(format!("row {serial} of {} refers to a missing row", T::DEF.name));
    }

    /// Enters a leaf. `denom` is none if the row names an unknown coin.
    fn enter<T: Table>(
        &mut self,
        (denom, kind): (Option<DenomSerial>, Kind),
        hash: ShortHash,
        units: u128,
        (serial, date): (u64, Option<Timestamp>),
    ) {
        let Some(terms) = denom.and_then(|denom| self.terms.get(&denom)) else {
            return self.fault::<T>(serial);
        };
        let due = Due { units, date, table: T::DEF.name, serial };
        let tree = self.ledger.entry((terms.h_denom_pub, kind)).or_default();
        // Of equal planchets, the one that must be published first.
        let earlier = tree.get(&hash).is_some_and(|known| known.date <= date);
        if !earlier {
            tree.insert(hash, due);
        }
    }

    fn signature<T: Table>(
        &mut self,
        denom: DenomSerial,
        h_coin_ev: &HashCode,
        (serial, date): (u64, Timestamp),
    ) {
        let Some(terms) = self.terms.get(&denom) else { return self.fault::<T>(serial) };
        let (hash, units) = (leaf::issued(&terms.h_denom_pub, h_coin_ev), terms.value.units());
        self.enter::<T>((Some(denom), Kind::Issued), hash, units, (serial, Some(date)));
    }

    fn owner(&self, coin: &EddsaPublicKey) -> Option<DenomSerial> {
        self.owners.get(coin).copied()
    }
}

/// Reads the rows as they are at one moment.
pub(super) fn read(store: &Store) -> Result<Rows, StoreError> {
    let tables = [
        Denominations::DEF,
        Withdrawals::DEF,
        Reveals::DEF,
        Coins::DEF,
        Deposits::DEF,
        Refunds::DEF,
        Melts::DEF,
        Recoups::DEF,
        RecoupRefreshes::DEF,
        PurseDeposits::DEF,
        ReserveOpenDeposits::DEF,
    ];
    let mut reader = Reader {
        rows: store.freeze(&tables)?,
        terms: BTreeMap::new(),
        owners: HashMap::new(),
        ledger: HashMap::new(),
        faults: Vec::new(),
    };
    reader.terms =
        reader.all::<Denominations>()?.into_iter().map(|found| (found.key.serial, found.row)).collect();
    reader.owners =
        reader.all::<Coins>()?.into_iter().map(|found| (found.key.coin_pub, found.row.denom)).collect();
    signatures(&mut reader)?;
    spent(&mut reader)?;
    came_back(&mut reader)?;
    let denoms = reader.terms.into_values().map(|row| (row.h_denom_pub, row)).collect();
    Ok(Rows { denoms, ledger: reader.ledger, faults: reader.faults })
}

fn signatures(reader: &mut Reader) -> Result<(), StoreError> {
    for found in reader.all::<Withdrawals>()? {
        reader.signature::<Withdrawals>(
            found.row.denom,
            &found.key.h_coin_ev,
            (found.serial, found.row.time),
        );
    }
    for found in reader.all::<Reveals>()? {
        for coin in &found.row.fresh.0 {
            reader.signature::<Reveals>(coin.denom, &coin.h_coin_ev, (found.serial, found.row.time));
        }
    }
    Ok(())
}

fn spent(reader: &mut Reader) -> Result<(), StoreError> {
    let kind = Kind::Redeemed;
    for Found { key, row, serial, .. } in reader.all::<Deposits>()? {
        let hash = leaf::deposit(&key.coin_pub, &key.merchant_pub, &key.h_contract_terms);
        let date = Some(row.exchange_time);
        reader.enter::<Deposits>((Some(row.denom), kind), hash, row.amount.units(), (serial, date));
    }
    for Found { key, row, serial, .. } in reader.all::<Melts>()? {
        let denom = reader.owner(&key.coin_pub);
        let hash = leaf::melt(&key.coin_pub, &key.rc);
        reader.enter::<Melts>((denom, kind), hash, row.amount.units(), (serial, Some(row.time)));
    }
    for Found { key, row, serial, .. } in reader.all::<Recoups>()? {
        let denom = reader.owner(&key.coin_pub);
        let hash = leaf::recoup(&key.coin_pub, &row.h_coin_ev, key.n);
        reader.enter::<Recoups>((denom, kind), hash, row.amount.units(), (serial, Some(row.time)));
    }
    for Found { key, row, serial, .. } in reader.all::<RecoupRefreshes>()? {
        let denom = reader.owner(&key.coin_pub);
        let hash = leaf::recoup_refresh(&key.coin_pub, &row.h_coin_ev, key.n);
        reader.enter::<RecoupRefreshes>((denom, kind), hash, row.amount.units(), (serial, Some(row.time)));
    }
    for Found { key, row, serial, .. } in reader.all::<PurseDeposits>()? {
        let hash = leaf::purse_deposit(&key.coin_pub, &key.purse_pub);
        reader.enter::<PurseDeposits>((Some(row.denom), kind), hash, row.amount.units(), (serial, None));
    }
    for Found { key, row, serial, .. } in reader.all::<ReserveOpenDeposits>()? {
        let denom = reader.owner(&key.coin_pub);
        let hash = leaf::reserve_open(&key.coin_pub, &key.reserve_pub, key.request_time);
        reader.enter::<ReserveOpenDeposits>((denom, kind), hash, row.amount.units(), (serial, None));
    }
    Ok(())
}

fn came_back(reader: &mut Reader) -> Result<(), StoreError> {
    let kind = Kind::Returned;
    for Found { key, row, serial, .. } in reader.all::<Refunds>()? {
        let denom = reader.owner(&key.coin_pub);
        let fee =
            denom.and_then(|denom| reader.terms.get(&denom)).map_or(0, |terms| terms.fee_refund.units());
        let Some(back) = row.amount.units().checked_sub(fee) else {
            reader.faults.push(format!("row {serial} of refunds is less than its fee"));
            continue;
        };
        let hash = leaf::refund(&key.coin_pub, &key.merchant_pub, &key.h_contract_terms, key.rtransaction_id);
        reader.enter::<Refunds>((denom, kind), hash, back, (serial, None));
    }
    for Found { key, row, serial, .. } in reader.all::<PurseDeposits>()? {
        if row.refunded {
            let hash = leaf::purse_refund(&key.coin_pub, &key.purse_pub);
            reader.enter::<PurseDeposits>((Some(row.denom), kind), hash, row.amount.units(), (serial, None));
        }
    }
    for Found { key, row, serial, .. } in reader.all::<RecoupRefreshes>()? {
        let denom = reader.owner(&row.old_coin_pub);
        let hash = leaf::recoup_credit(&row.old_coin_pub, &key.coin_pub, &row.h_coin_ev, key.n);
        reader.enter::<RecoupRefreshes>((denom, kind), hash, row.amount.units(), (serial, Some(row.time)));
    }
    Ok(())
}
