//! The cryptographic attack: anything in the rows of a payment that also occurs in the rows of a withdrawal,
//! plain or hashed; and whether blinded and unblinded values are more similar than chance.

use std::collections::{HashMap, HashSet};

use batzen_crypto::{EddsaPublicKey, hash};
use batzen_store::{Record, Table};
use batzen_tables::exchange::{Coins, CsNonces, Deposits, Reserves, ReservesIn, Withdrawals};

use super::facts::Facts;
use super::view::View;
use crate::host::Step;

/// Bytes that must be equal to count as the same identifier. Identifiers have 16, 32 or 64 bytes, so two
/// different ones never agree in as many.
const BLOCK: usize = 12;

type Block = [u8; BLOCK];

/// Amounts, times and numbers repeat few bytes and occur everywhere. Random bytes rarely repeat.
fn is_random(block: &Block) -> bool {
    let distinct: HashSet<u8> = block.iter().copied().collect();
    distinct.len() >= BLOCK - 3
}

/// Bytes of a withdrawal, cut so that each run of two blocks contains a whole one.
fn blocks(bytes: &[u8]) -> impl Iterator<Item = Block> {
    bytes.chunks_exact(BLOCK).map(|block| block.try_into().expect("a whole block")).filter(is_random)
}

/// For each coin, the reserves whose rows contain something of its rows.
///
/// # Errors
/// When the store cannot be read.
pub fn matches(view: &View, facts: &Facts) -> Step<HashMap<EddsaPublicKey, HashSet<usize>>> {
    let index_of: HashMap<EddsaPublicKey, usize> =
        facts.reserves.iter().zip(0..).map(|(reserve, index)| (reserve.reserve_pub, index)).collect();
    let mut sources: HashMap<Block, HashSet<usize>> = HashMap::new();
    // The keys of these rows begin with the reserve's key.
    for table in [Reserves::DEF, ReservesIn::DEF, Withdrawals::DEF] {
        for record in view.raw(table)? {
            let key: [u8; 32] = record.key[..32].try_into().expect("a reserve's key");
            let Some(index) = index_of.get(&EddsaPublicKey::from_bytes(key)) else { continue };
            let hashed = hash::sha512(&record.key[32..]);
            let bytes = [record.key.as_slice(), &record.row, hashed.as_bytes()];
            for block in bytes.into_iter().flat_map(blocks) {
                sources.entry(block).or_default().insert(*index);
            }
        }
    }
    // A nonce belongs to the withdrawal of the planchet that it was used for.
    let planchets: HashMap<_, usize> = view
        .rows::<Withdrawals>()?
        .into_iter()
        .filter_map(|found| Some((found.key.h_coin_ev, *index_of.get(&found.key.reserve_pub)?)))
        .collect();
    for found in view.rows::<CsNonces>()? {
        let Some(index) = planchets.get(&found.row.operation) else { continue };
        for block in blocks(found.key.nonce.as_bytes()) {
            sources.entry(block).or_default().insert(*index);
        }
    }
    let mut matches: HashMap<EddsaPublicKey, HashSet<usize>> = HashMap::new();
    for table in [Deposits::DEF, Coins::DEF] {
        for record in view.raw(table)? {
            let key: [u8; 32] = record.key[..32].try_into().expect("a coin's key");
            let coin_pub = EddsaPublicKey::from_bytes(key);
            let hashed = hash::sha512(&key);
            for bytes in [record.key.as_slice(), &record.row, hashed.as_bytes()] {
                for window in bytes.windows(BLOCK) {
                    let block: Block = window.try_into().expect("a whole block");
                    if let Some(found) = sources.get(&block) {
                        matches.entry(coin_pub).or_default().extend(found);
                    }
                }
            }
        }
    }
    Ok(matches)
}

/// A statistical test of blindness.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Similarity {
    /// Coins that were compared with all earlier withdrawals of their denomination.
    pub coins: u64,
    /// Number of times that the most similar blinded value was the coin's own.
    pub hits: u64,
    /// Number of times expected by chance.
    pub expected: f64,
    /// The variance of that number.
    pub variance: f64,
}

impl Similarity {
    /// The bound of [`Similarity::deviation`]: chance alone exceeds it less than once in 30,000 tests.
    pub const DEVIATION_MAX: f64 = 4.0;

    /// Adds another town's test.
    pub fn add(&mut self, other: &Self) {
        self.coins += other.coins;
        self.hits += other.hits;
        self.expected += other.expected;
        self.variance += other.variance;
    }

    /// Number of standard deviations that there are more hits than expected.
    #[must_use]
    pub fn deviation(&self) -> f64 {
        if self.variance > 0.0 { (self.hits as f64 - self.expected) / self.variance.sqrt() } else { 0.0 }
    }
}

/// The most coins that are compared, so that large towns take no hours.
const COMPARED_MAX: usize = 4_000;

fn sample(bytes: &[u8]) -> u128 {
    let tail = &bytes[bytes.len() - 17..bytes.len() - 1];
    u128::from_le_bytes(tail.try_into().expect("16 bytes"))
}

/// Tests whether a coin's signature, key, or their hashes are closer to the blinded values of their own
/// withdrawal than to others.
///
/// # Errors
/// When the store cannot be read.
pub fn similarity(
    view: &View,
    facts: &Facts,
    reserve_of: &HashMap<EddsaPublicKey, usize>,
    withdrawn: &HashSet<EddsaPublicKey>,
) -> Step<Similarity> {
    let index_of: HashMap<EddsaPublicKey, usize> =
        facts.reserves.iter().zip(0..).map(|(reserve, index)| (reserve.reserve_pub, index)).collect();
    let mut planchets: HashMap<_, Vec<(u64, usize, [u128; 2])>> = HashMap::new();
    for found in view.rows::<Withdrawals>()? {
        let Some(index) = index_of.get(&found.key.reserve_pub) else { continue };
        let signature = Record::to_bytes(&found.row);
        // The blind signature is followed by the time, eight bytes.
        let signature = &signature[..signature.len() - 8];
        let traces = [sample(found.key.h_coin_ev.as_bytes()), sample(signature)];
        let list = planchets.entry(found.row.denom).or_default();
        list.push((found.serial, *index, traces));
    }
    let coins: HashMap<_, _> =
        view.rows::<Coins>()?.into_iter().map(|found| (found.key.coin_pub, found.row)).collect();
    let mut result = Similarity::default();
    for payment in &facts.payments {
        let mut first_hand = payment.coins.iter().filter(|coin| withdrawn.contains(&coin.coin_pub));
        let Some(part) = first_hand.next() else { continue };
        let Some(truth) = reserve_of.get(&part.coin_pub) else { continue };
        let Some(coin) = coins.get(&part.coin_pub) else { continue };
        let Some(earlier) = planchets.get(&coin.denom) else { continue };
        let earlier = &earlier[..earlier.partition_point(|(serial, ..)| *serial < payment.serial)];
        let row = Record::to_bytes(coin);
        // The signature is followed by the rest of the value, and a flag.
        let signature = &row[..row.len() - 1 - batzen_store::Column::to_bytes(&coin.remaining).len()];
        let traces = [
            sample(signature),
            sample(part.coin_pub.as_bytes()),
            sample(hash::sha512(part.coin_pub.as_bytes()).as_bytes()),
        ];
        let distance = |blinded: &[u128; 2]| {
            let pairs = traces.iter().flat_map(|trace| blinded.iter().map(move |other| trace ^ other));
            // Equal distances are common. Arbitrary bits decide between them, not the order.
            pairs.map(|difference| (difference.count_ones(), difference)).min().unwrap_or((128, 0))
        };
        let closest =
            earlier.iter().map(|(_, index, blinded)| (distance(blinded), *index)).min_by_key(|(d, _)| *d);
        let Some((_, closest)) = closest else { continue };
        let own = earlier.iter().filter(|(_, index, _)| index == truth).count();
        let chance = own as f64 / earlier.len() as f64;
        if chance >= 1.0 {
            continue;
        }
        result.coins += 1;
        result.hits += u64::from(closest == *truth);
        result.expected += chance;
        result.variance += chance * (1.0 - chance);
        if result.coins as usize >= COMPARED_MAX {
            break;
        }
    }
    Ok(result)
}
