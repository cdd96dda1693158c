//! Splits changes into parts that share no object, so that threads can audit them apart and only the sums are merged.
//!
//! Two changes belong together if they touch the same object, or objects of which one's account needs the other's rows:
//! a purse and the reserve that it was merged into. Most do not: a deposit touches its coin, a withdrawal its reserve.

use std::collections::HashMap;

use batzen_crypto::{EddsaPublicKey, Wtid};
use batzen_store::{Column, Record, Result, StoreError, Table, TableDef};
use batzen_tables::exchange::{
    AggregateRow, Aggregates, ArchiveTransfers, CloseRequests, ClosingRow, Closings, CoinPub, Coins,
    DepositRow, Deposits, Drains, HistoryRequests, Melts, Prepared, PurseDeletions, PurseDeposits,
    PurseMergeRow, PurseMerges, PursePub, Purses, RecoupCredits, RecoupRefreshCredits, RecoupRefreshRow,
    RecoupRefreshes, RecoupRow, Recoups, Refunds, ReserveAccounts, ReserveOpenDeposits, ReserveOpens,
    ReservePub, ReserveRequestKey, Reserves, ReservesIn, Reveals, WireOut, Withdrawals, WtidKey,
};

use crate::audit::books::RecoupName;
use crate::audit::scope::Scope;

/// The object that rows belong to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Object {
    Coin(CoinPub),
    Reserve(ReservePub),
    Transfer(Wtid),
    Purse(PursePub),
    Open(ReserveRequestKey),
    Recoup(RecoupName),
}

/// The objects that changes touch.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    pub(crate) scope: Scope,
    /// The reserve or old coin of each recoup.
    pub(crate) receivers: HashMap<RecoupName, EddsaPublicKey>,
}

impl Touched {
    pub(super) fn add(&mut self, object: Object) {
        let scope = &mut self.scope;
        match object {
            Object::Coin(coin_pub) => scope.coins.insert(coin_pub),
            Object::Reserve(reserve_pub) => scope.reserves.insert(reserve_pub),
            Object::Transfer(wtid) => scope.transfers.insert(wtid),
            Object::Purse(purse_pub) => scope.purses.insert(purse_pub),
            Object::Open(request) => scope.opens.insert(request),
            Object::Recoup(name) => scope.recoups.insert(name),
        };
    }

    pub(super) fn row(&mut self, table: &'static TableDef, key: &[u8], row: &[u8]) -> Result<()> {
        let Belonging { objects, receiver } = belonging(table, key, row)?;
        for object in objects {
            if let (Object::Recoup(name), Some(receiver)) = (&object, receiver) {
                self.receivers.insert(name.clone(), receiver);
            }
            self.add(object);
        }
        Ok(())
    }
}

/// The objects that a row belongs to.
#[derive(Debug, Default)]
pub(crate) struct Belonging {
    pub(crate) objects: Vec<Object>,
    /// The reserve or old coin of a recoup.
    receiver: Option<EddsaPublicKey>,
}

pub(crate) fn decode_error(table: &'static TableDef) -> impl Fn(batzen_store::DecodeError) -> StoreError {
    move |source| StoreError::Decode { table: table.name, source }
}

/// 32 bytes of a key, from `at`.
pub(crate) fn part(table: &'static TableDef, key: &[u8], at: usize) -> Result<EddsaPublicKey> {
    let bytes = key.get(at..at + 32).unwrap_or_default();
    EddsaPublicKey::decode(&mut &*bytes).map_err(decode_error(table))
}

fn recoup_number(table: &'static TableDef, key: &[u8], at: usize) -> Result<u32> {
    u32::decode(&mut key.get(at..).unwrap_or_default()).map_err(decode_error(table))
}

/// The objects that a row belongs to: whose account it is in.
pub(crate) fn belonging(table: &'static TableDef, key: &[u8], row: &[u8]) -> Result<Belonging> {
    let failed = decode_error(table);
    let mut receiver = None;
    let objects = match table.id {
        id if [Coins::DEF.id, Refunds::DEF.id, Melts::DEF.id, Reveals::DEF.id].contains(&id) => {
            vec![Object::Coin(part(table, key, 0)?)]
        }
        id if id == Deposits::DEF.id => {
            let coin = Object::Coin(part(table, key, 0)?);
            match DepositRow::decode(row).map_err(failed)?.wtid {
                Some(wtid) => vec![coin, Object::Transfer(wtid)],
                None => vec![coin],
            }
        }
        id if id == Recoups::DEF.id => {
            let (coin_pub, n) = (part(table, key, 0)?, recoup_number(table, key, 32)?);
            receiver = Some(RecoupRow::decode(row).map_err(failed)?.reserve_pub);
            vec![Object::Coin(coin_pub), Object::Recoup(RecoupName { coin_pub, n, is_refresh: false })]
        }
        id if id == RecoupRefreshes::DEF.id => {
            let (coin_pub, n) = (part(table, key, 0)?, recoup_number(table, key, 32)?);
            receiver = Some(RecoupRefreshRow::decode(row).map_err(failed)?.old_coin_pub);
            vec![Object::Coin(coin_pub), Object::Recoup(RecoupName { coin_pub, n, is_refresh: true })]
        }
        id if id == RecoupCredits::DEF.id => {
            let (reserve_pub, coin_pub) = (part(table, key, 0)?, part(table, key, 32)?);
            let n = recoup_number(table, key, 64)?;
            receiver = Some(reserve_pub);
            vec![Object::Reserve(reserve_pub), Object::Recoup(RecoupName { coin_pub, n, is_refresh: false })]
        }
        id if id == RecoupRefreshCredits::DEF.id => {
            let (old_coin_pub, coin_pub) = (part(table, key, 0)?, part(table, key, 32)?);
            let n = recoup_number(table, key, 64)?;
            receiver = Some(old_coin_pub);
            vec![Object::Coin(old_coin_pub), Object::Recoup(RecoupName { coin_pub, n, is_refresh: true })]
        }
        id if id == ReserveOpenDeposits::DEF.id => {
            let request = ReserveRequestKey::decode(key.get(32..).unwrap_or_default()).map_err(failed)?;
            vec![Object::Coin(part(table, key, 0)?), Object::Open(request)]
        }
        id if id == ReserveOpens::DEF.id => {
            let request = ReserveRequestKey::decode(key).map_err(failed)?;
            vec![Object::Reserve(part(table, key, 0)?), Object::Open(request)]
        }
        id if [
            Reserves::DEF.id,
            ReservesIn::DEF.id,
            Withdrawals::DEF.id,
            HistoryRequests::DEF.id,
            ReserveAccounts::DEF.id,
            CloseRequests::DEF.id,
        ]
        .contains(&id) =>
        {
            vec![Object::Reserve(part(table, key, 0)?)]
        }
        id if id == Closings::DEF.id => {
            let wtid = ClosingRow::decode(row).map_err(failed)?.wtid;
            vec![Object::Reserve(part(table, key, 0)?), Object::Transfer(wtid)]
        }
        id if [Purses::DEF.id, PurseDeletions::DEF.id].contains(&id) => {
            vec![Object::Purse(part(table, key, 0)?)]
        }
        id if id == PurseDeposits::DEF.id => {
            vec![Object::Purse(part(table, key, 0)?), Object::Coin(part(table, key, 32)?)]
        }
        id if id == PurseMerges::DEF.id => {
            let reserve_pub = PurseMergeRow::decode(row).map_err(failed)?.reserve_pub;
            vec![Object::Purse(part(table, key, 0)?), Object::Reserve(reserve_pub)]
        }
        id if id == Aggregates::DEF.id => {
            vec![Object::Transfer(AggregateRow::decode(row).map_err(failed)?.wtid)]
        }
        id if [WireOut::DEF.id, Prepared::DEF.id, Drains::DEF.id, ArchiveTransfers::DEF.id].contains(&id) => {
            vec![Object::Transfer(WtidKey::decode(key).map_err(failed)?.wtid)]
        }
        _ => Vec::new(),
    };
    Ok(Belonging { objects, receiver })
}

/// Numbers that belong together.
#[derive(Debug, Default)]
struct Groups {
    parents: Vec<usize>,
}

impl Groups {
    fn add(&mut self) -> usize {
        self.parents.push(self.parents.len());
        self.parents.len() - 1
    }

    fn root(&mut self, mut number: usize) -> usize {
        while self.parents[number] != number {
            self.parents[number] = self.parents[self.parents[number]];
            number = self.parents[number];
        }
        number
    }

    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.root(one), self.root(other));
        // The lower number stays, so that the result does not depend on the order of hashes.
        self.parents[one.max(other)] = one.min(other);
    }
}

/// Splits changes, of which each is in one of the parts, in their order. `objects`: what each change touches; `related`:
/// objects that belong together for other reasons. Changes that touch nothing are in the first part.
pub(crate) fn split(objects: &[Vec<Object>], related: &[[Object; 2]], parts_max: usize) -> Vec<Vec<usize>> {
    let mut groups = Groups::default();
    let mut numbers: HashMap<&Object, usize> = HashMap::with_capacity(objects.len());
    let mut firsts = Vec::with_capacity(objects.len());
    for objects in objects.iter().map(Vec::as_slice).chain(related.iter().map(<[_; 2]>::as_slice)) {
        let mut first = None;
        for object in objects {
            let number = *numbers.entry(object).or_insert_with(|| groups.add());
            groups.join(*first.get_or_insert(number), number);
        }
        firsts.push(first);
    }
    // Those that touch nothing are a group, too.
    let nothing = groups.add();
    let roots: Vec<usize> =
        firsts[..objects.len()].iter().map(|first| groups.root(first.unwrap_or(nothing))).collect();
    let mut sizes: Vec<(usize, usize)> = {
        let mut sizes = HashMap::new();
        roots.iter().for_each(|root| *sizes.entry(*root).or_insert(0) += 1);
        sizes.into_iter().map(|(root, size): (usize, usize)| (size, root)).collect()
    };
    // The largest first, each into the part that has the least.
    sizes.sort_unstable_by(|one, other| other.0.cmp(&one.0).then(one.1.cmp(&other.1)));
    let mut loads = vec![0; parts_max.clamp(1, sizes.len().max(1))];
    let mut places = HashMap::with_capacity(sizes.len());
    for (size, root) in sizes {
        let place = (0..loads.len()).min_by_key(|place| loads[*place]).expect("there is a part");
        loads[place] += size;
        places.insert(root, place);
    }
    let mut parts = vec![Vec::new(); loads.len()];
    for (change, root) in roots.iter().enumerate() {
        parts[places[root]].push(change);
    }
    parts.retain(|part| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn object(number: u8) -> Object {
        let key = EddsaPublicKey::from_bytes([number / 2; 32]);
        if number.is_multiple_of(2) { Object::Coin(key) } else { Object::Reserve(key) }
    }

    proptest! {
        #[test]
        fn parts_share_no_object_and_have_each_change_once(
            touched in prop::collection::vec(prop::collection::vec(0..60_u8, 0..3), 0..40),
            related in prop::collection::vec(prop::array::uniform2(0..60_u8), 0..4),
            parts_max in 1..6_usize,
        ) {
            let objects: Vec<Vec<Object>> =
                touched.iter().map(|numbers| numbers.iter().map(|number| object(*number)).collect()).collect();
            let related: Vec<[Object; 2]> = related.iter().map(|pair| pair.map(object)).collect();
            let parts = split(&objects, &related, parts_max);
            prop_assert!(parts.len() <= parts_max);
            let mut all: Vec<usize> = parts.concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..objects.len()).collect::<Vec<_>>());
            let mut owners: HashMap<Object, usize> = HashMap::new();
            for (number, part) in parts.iter().enumerate() {
                prop_assert!(part.is_sorted());
                for change in part {
                    for object in &objects[*change] {
                        prop_assert_eq!(*owners.entry(object.clone()).or_insert(number), number);
                    }
                }
            }
            for [one, other] in &related {
                if let (Some(one), Some(other)) = (owners.get(one), owners.get(other)) {
                    prop_assert_eq!(one, other);
                }
            }
        }
    }

    #[test]
    fn independent_changes_are_spread_evenly() {
        let objects: Vec<Vec<Object>> = (0..100).map(|number| vec![object(number)]).collect();
        let sizes: Vec<usize> = split(&objects, &[], 4).iter().map(Vec::len).collect();
        assert_eq!(sizes, [25; 4]);
        let linked: HashSet<usize> = split(&objects, &[[object(3), object(70)]], 4)
            .into_iter()
            .find(|part| part.contains(&3))
            .expect("a part has it")
            .into_iter()
            .collect();
        assert!(linked.contains(&70));
    }
}
