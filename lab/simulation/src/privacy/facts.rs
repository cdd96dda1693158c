//! The operator's rows, arranged for the attacks. Everything here follows from the [`View`].

use std::collections::{BTreeMap, HashMap};

use batzen_crypto::EddsaPublicKey;
use batzen_tables::exchange::{Denominations, Deposits, ReservesIn, Reveals, Withdrawals};

use super::view::View;
use crate::host::{Step, Stop};

/// Most denominations of a town.
pub const DENOMS_MAX: usize = 16;

/// Number of coins of each denomination, smallest value first.
pub type CoinCounts = [u32; DENOMS_MAX];

/// A reserve and what was withdrawn from it.
#[derive(Clone, Debug)]
pub struct Reserve {
    /// Its key.
    pub reserve_pub: EddsaPublicKey,
    /// The bank account that paid, by number in the order of first use.
    pub account: usize,
    /// The sum, in cents.
    pub cents: u64,
    /// When its first coin was signed, in microseconds.
    pub time: u64,
    /// The same in the order of commits, which is finer than the time.
    pub serial: u64,
    /// The coins withdrawn from it.
    pub coins: CoinCounts,
}

/// A coin in a payment.
#[derive(Clone, Debug)]
pub struct PaidCoin {
    /// Its key.
    pub coin_pub: EddsaPublicKey,
    /// Its denomination: an index by value.
    pub denom: usize,
    /// Whether a part of its value was left.
    pub has_change: bool,
}

/// A payment: all deposits for one contract.
#[derive(Clone, Debug)]
pub struct Payment {
    /// When it was accepted, in microseconds.
    pub time: u64,
    /// Its sum, in cents.
    pub cents: u64,
    /// Its coins.
    pub coins: Vec<PaidCoin>,
    /// Number of reserves that were known before.
    pub reserves: usize,
    /// Its place in the order of commits.
    pub serial: u64,
}

/// An event at a time.
#[derive(Clone, Debug)]
pub enum Occurrence {
    /// Coins were withdrawn from a reserve, by its index.
    Withdrawn(usize),
    /// A payment, by its index.
    Paid(usize),
    /// A coin was melted, and these coins were made of it.
    Melted(EddsaPublicKey, CoinCounts),
}

/// All facts.
pub struct Facts {
    /// The value of each denomination in cents, ascending.
    pub values: Vec<u64>,
    /// The reserves in the order of their first withdrawals.
    pub reserves: Vec<Reserve>,
    /// The payments in their order.
    pub payments: Vec<Payment>,
    /// Everything in the order of commits.
    pub occurrences: Vec<(u64, Occurrence)>,
    /// Number of bank accounts.
    pub accounts: usize,
}

fn cents_of(money: batzen_protocol::Money) -> u64 {
    u64::try_from(money.units() / 1_000_000).expect("small amounts")
}

impl Facts {
    /// Reads a view.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn read(view: &View) -> Step<Self> {
        let mut denoms: Vec<_> = view
            .rows::<Denominations>()?
            .into_iter()
            .map(|found| (cents_of(found.row.value), found.key.serial))
            .collect();
        denoms.sort_unstable_by_key(|(value, _)| *value);
        let values: Vec<u64> = denoms.iter().map(|(value, _)| *value).collect();
        let serials: BTreeMap<_, usize> =
            denoms.iter().zip(0..).map(|((_, serial), index)| (*serial, index)).collect();
        if values.len() > DENOMS_MAX {
            return Err(Stop::wrong("a town has too many denominations"));
        }
        // Reserves, by the order of the first coin.
        let mut accounts = BTreeMap::new();
        let mut money_in: HashMap<EddsaPublicKey, (usize, u64)> = HashMap::new();
        for found in view.rows::<ReservesIn>()? {
            let next = accounts.len();
            let account = *accounts.entry(found.row.h_payto).or_insert(next);
            let entry = money_in.entry(found.key.reserve_pub).or_insert((account, 0));
            entry.1 += cents_of(found.row.amount);
        }
        let mut reserves: Vec<Reserve> = Vec::new();
        let mut index_of: HashMap<EddsaPublicKey, usize> = HashMap::new();
        for found in view.rows::<Withdrawals>()? {
            let reserve_pub = found.key.reserve_pub;
            let Some((account, cents)) = money_in.get(&reserve_pub) else { continue };
            let index = *index_of.entry(reserve_pub).or_insert_with(|| {
                reserves.push(Reserve {
                    reserve_pub,
                    account: *account,
                    cents: *cents,
                    time: found.row.time.as_micros(),
                    serial: found.serial,
                    coins: [0; DENOMS_MAX],
                });
                reserves.len() - 1
            });
            reserves[index].coins[serials[&found.row.denom]] += 1;
        }
        let mut occurrences: Vec<(u64, Occurrence)> = reserves
            .iter()
            .zip(0..)
            .map(|(reserve, index)| (reserve.serial, Occurrence::Withdrawn(index)))
            .collect();
        // Payments: deposits of one contract.
        let mut payments: Vec<Payment> = Vec::new();
        let mut contracts = HashMap::new();
        for found in view.rows::<Deposits>()? {
            let denom = serials[&found.row.denom];
            let contract = (found.key.merchant_pub, found.key.h_contract_terms, found.row.exchange_time);
            let index = *contracts.entry(contract).or_insert_with(|| {
                let time = found.row.exchange_time.as_micros();
                occurrences.push((found.serial, Occurrence::Paid(payments.len())));
                let reserves = reserves.partition_point(|reserve| reserve.serial < found.serial);
                payments.push(Payment { time, cents: 0, coins: Vec::new(), reserves, serial: found.serial });
                payments.len() - 1
            });
            let cents = cents_of(found.row.amount);
            payments[index].cents += cents;
            payments[index].coins.push(PaidCoin {
                coin_pub: found.key.coin_pub,
                denom,
                has_change: cents < values[denom],
            });
        }
        for found in view.rows::<Reveals>()? {
            let mut coins = [0; DENOMS_MAX];
            for coin in &found.row.fresh.0 {
                coins[serials[&coin.denom]] += 1;
            }
            occurrences.push((found.serial, Occurrence::Melted(found.key.coin_pub, coins)));
        }
        occurrences.sort_by_key(|(serial, _)| *serial);
        Ok(Self { values, reserves, payments, occurrences, accounts: accounts.len() })
    }
}
