//! Number of bytes that a payment takes in the embedded store's journal.

use std::path::Path;
use std::sync::Arc;

use batzen_crypto::{DenomSignature, EddsaSignature, HashCode, WireSalt};
use batzen_protocol::{Money, Timestamp};
use batzen_store::embedded::sim::SimDisk;
use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::{Backend, ChangeSet, CommitOutcome};
use batzen_tables::exchange::{
    ALL, CoinKey, CoinPub, CoinRow, Coins, DenomSerial, DepositKey, DepositRow, Deposits, MerchantPub,
    PaytoHash,
};

/// Random bytes, by a linear congruential generator.
struct Random(u64);

impl Random {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            self.0.to_be_bytes()[0]
        })
    }
}

/// Bytes in the journal for each coin, when payments of that many RSA-2048 coins reach 200 merchants.
fn bytes_per_coin(coins: u64) -> u64 {
    const PAYMENTS: u64 = 8_000;
    const PAYMENTS_IN_COMMIT: u64 = 32;
    let options = Options { disk: Arc::new(SimDisk::new(1)), background: false, ..Options::default() };
    let store = EmbeddedStore::open(Path::new("/store"), ALL, options).expect("it opens");
    let mut random = Random(1);
    let merchants: Vec<([u8; 32], [u8; 32], [u8; 16])> =
        (0..200).map(|_| (random.bytes(), random.bytes(), random.bytes())).collect();
    let at = |secs: u64| Timestamp::from_secs(1_795_000_000 + secs);
    let micros = |secs: u64, us: u64| Timestamp::from_micros((1_795_000_000 + secs) * 1_000_000 + us);
    for commit in 0..PAYMENTS / PAYMENTS_IN_COMMIT {
        let mut changes = ChangeSet::new();
        for n in 0..PAYMENTS_IN_COMMIT {
            let (merchant, account, salt) = merchants[usize::from(u16::from_le_bytes(random.bytes()) % 200)];
            let contract = HashCode::from_bytes(random.bytes());
            let time = commit * 7 + n;
            for _ in 0..coins {
                let coin_pub = CoinPub::from_bytes(random.bytes());
                let coin = CoinRow {
                    denom: DenomSerial(3),
                    h_age: None,
                    denom_sig: DenomSignature::Rsa(random.bytes::<256>().to_vec()),
                    remaining: Money::ZERO,
                    zombie: false,
                };
                changes.insert::<Coins>(&CoinKey { coin_pub }, &coin);
                let key = DepositKey {
                    coin_pub,
                    merchant_pub: MerchantPub::from_bytes(merchant),
                    h_contract_terms: contract,
                };
                let deposit = DepositRow {
                    denom: DenomSerial(3),
                    amount: Money::UNIT,
                    wallet_time: at(time),
                    // The exchange's clock has microseconds.
                    exchange_time: micros(time + 2, 123_456 + n),
                    refund_deadline: at(time + 900),
                    wire_deadline: at(time + 86_400),
                    wire_salt: WireSalt::from_bytes(salt),
                    h_payto: PaytoHash::from_bytes(account),
                    coin_sig: EddsaSignature::from_bytes(random.bytes()),
                    refunded: Money::ZERO,
                    wtid: None,
                };
                changes.insert::<Deposits>(&key, &deposit);
            }
        }
        assert_eq!(store.commit(&changes).expect("it works"), CommitOutcome::Committed);
    }
    store.stats().written_bytes_total / (PAYMENTS * coins)
}

#[test]
fn payment_takes_few_bytes() {
    let (one, of_ten) = (bytes_per_coin(1), bytes_per_coin(10));
    println!("{one} bytes for a payment with one coin, {of_ten} a coin in payments of ten");
    assert!((450..=500).contains(&one), "{one} bytes for a payment with one coin");
    assert!((380..=440).contains(&of_ten), "{of_ten} bytes a coin in payments of ten");
}
