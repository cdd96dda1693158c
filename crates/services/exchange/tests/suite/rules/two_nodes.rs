//! Two nodes on one database, and four lanes on one embedded store, are offered the same coins at the same
//! time: each coin is spent once, and whoever loses the race has the proof.

use std::sync::{Arc, Barrier};
use std::time::Instant;

use batzen_crypto::{DenomSignature, EddsaPublicKey, EddsaSignature, HashCode, WireSalt};
use batzen_engine::Batcher;
use batzen_exchange::reads::kyc;
use batzen_exchange::reads::totals::totals;
use batzen_exchange::rules::{
    Answer, Command, ConflictReason, DenomTable, Deposit, DepositCoin, ExchangeRules, Planchet,
    PresentedCoin, Refusal, RequireKyc, Withdraw,
};
use batzen_protocol::Money;
use batzen_service::storage::{EXCHANGE, StoreConfig};
use batzen_store::Store;
use batzen_store::embedded::EmbeddedStore;
use batzen_tables::exchange::{DenomSerial, Deposits};
use batzen_testkit::postgres::fresh_database;

use crate::rules::world::*;

/// Coins that are offered to both.
const COINS: u32 = 10_000;
/// Payments in a batch, about as many as under load.
const BATCH: usize = 64;

fn coin_pub(n: u32) -> EddsaPublicKey {
    let mut bytes = [2; 32];
    // Spread over all shards, as real keys are.
    bytes[..4].copy_from_slice(&n.wrapping_mul(2_654_435_761).to_be_bytes());
    bytes[28..].copy_from_slice(&n.to_be_bytes());
    EddsaPublicKey::from_bytes(bytes)
}

fn envelope(n: u32) -> HashCode {
    let mut bytes = [4; 64];
    bytes[..4].copy_from_slice(&n.to_be_bytes());
    HashCode::from_bytes(bytes)
}

/// Issues all coins from one reserve.
fn issue(world: &World) {
    world.fund(1, 1, "30000");
    let all: Vec<u32> = (0..COINS).collect();
    for part in all.chunks(500) {
        let planchets = part.iter().map(|n| Planchet {
            denom: DenomSerial(2),
            h_coin_ev: envelope(*n),
            reserve_sig: sig(1),
            ev_sig: Some(ev_sig(1, 0)),
            nonce: None,
        });
        let withdraw =
            Withdraw { reserve_pub: reserve(1), planchets: planchets.collect(), batch: true, origin: None };
        world.ok(Command::Withdraw(withdraw));
    }
}

/// Pays the whole value of a coin to this node's merchant.
fn payment(node: u8, n: u32) -> Command {
    Command::Deposit(Deposit {
        merchant_pub: merchant(node),
        h_contract_terms: contract(node),
        payto_uri: payto(node),
        h_payto: h_payto(node),
        wire_salt: WireSalt::from_bytes([9; 16]),
        wallet_time: at(0),
        refund_deadline: at(0),
        wire_deadline: at(100),
        coins: vec![DepositCoin {
            coin: PresentedCoin {
                coin_pub: coin_pub(n),
                denom: DenomSerial(2),
                h_age: None,
                denom_sig: DenomSignature::Rsa(vec![1]),
            },
            contribution: m("2"),
            coin_sig: EddsaSignature::from_bytes([node; 64]),
        }],
    })
}

/// Runs a node with its own rules. Returns the outcome for each coin.
fn node(store: &Store, number: u8, together: &Barrier) -> Vec<Verdict> {
    let denoms = Arc::new(DenomTable::load(store).unwrap());
    let batcher = Batcher::new(Arc::new(ExchangeRules::new(denoms, config())), store.clone());
    let commands: Vec<Command> = (0..COINS).map(|n| payment(number, n)).collect();
    let mut verdicts = Vec::new();
    for batch in commands.chunks(BATCH) {
        together.wait();
        verdicts.extend(batcher.run(batch, &|| at(1)).unwrap());
    }
    verdicts
}

/// Spends all coins at a node for each of the stores, which have the same rows.
fn compete(stores: &[Store]) {
    let world = World::on(stores[0].clone(), &denoms(), config(), |rules| rules);
    issue(&world);
    let together = Barrier::new(stores.len());
    let start = Instant::now();
    let verdicts: Vec<Vec<Verdict>> = std::thread::scope(|scope| {
        let nodes: Vec<_> = (1..)
            .zip(stores)
            .map(|(number, store)| {
                scope.spawn({
                    let together = &together;
                    move || node(store, number, together)
                })
            })
            .collect();
        nodes.into_iter().map(|node| node.join().unwrap()).collect()
    });
    let elapsed = start.elapsed();

    let mut won = vec![0; stores.len()];
    for n in 0..COINS as usize {
        let winners: Vec<usize> = (0..stores.len()).filter(|node| verdicts[*node][n].is_ok()).collect();
        let [winner] = winners[..] else { panic!("coin {n} was spent at {winners:?}") };
        won[winner] += 1;
        for refusal in verdicts.iter().filter_map(|verdicts| verdicts[n].as_ref().err()) {
            let Refusal::CoinConflict { conflict, .. } = refusal else { panic!("coin {n}: {refusal:?}") };
            assert!(matches!(conflict.reason, ConflictReason::Insufficient { .. }), "{:?}", conflict.reason);
            assert_eq!(conflict.history.remaining, Money::ZERO, "the proof of coin {n}");
            assert_eq!(conflict.history.items.len(), 1, "the winner's deposit proves it");
        }
    }
    println!("{COINS} coins in {elapsed:?}: {won:?} were won");
    assert!(won.iter().all(|won| *won > 0), "the nodes did not compete: {won:?}");
    assert_eq!(world.store.count::<Deposits>().unwrap(), u64::from(COINS));
    let books = totals(&world.store, &world.denoms).unwrap();
    assert!(books.conserved(), "{books:?}");
    assert_eq!(books.redeemed, m("2").checked_mul(u64::from(COINS)).unwrap());
    assert_eq!(books.outstanding, Money::ZERO);
}

#[test]
fn two_nodes_spend_each_of_ten_thousand_coins_once() {
    let place = StoreConfig::postgres(fresh_database());
    place.prepare(&EXCHANGE).unwrap();
    let stores = [(); 2].map(|()| place.open(&EXCHANGE, 1).unwrap());
    compete(&stores);
    stores.iter().for_each(|store| store.close().unwrap());
}

/// An account is refused at two nodes at the same time: both name the same number.
#[test]
fn two_nodes_draw_one_number_for_a_requirement() {
    let directory = tempfile::tempdir().unwrap();
    let store = StoreConfig::embedded(directory.path().to_owned()).open(&EXCHANGE, 2).unwrap();
    let together = Barrier::new(2);
    let draw = |number: u64| {
        let denoms = Arc::new(DenomTable::load(&store).unwrap());
        let batcher = Batcher::new(Arc::new(ExchangeRules::new(denoms, config())), store.clone());
        let ask = |account: u8| {
            together.wait();
            let command = RequireKyc { h_payto: h_payto(account), checks: "name".to_owned(), row: number };
            let mut verdicts = batcher.run(&[Command::RequireKyc(command)], &|| at(1)).unwrap();
            let Ok(Answer::RequireKyc(stored)) = verdicts.remove(0) else { panic!("it is never refused") };
            stored.row
        };
        (0..=255).map(ask).collect::<Vec<u64>>()
    };
    let (one, two) = std::thread::scope(|scope| {
        let other = scope.spawn(|| draw(2));
        (draw(1), other.join().unwrap())
    });
    assert_eq!(one, two);
    for account in 0..=255 {
        assert_eq!(kyc::requirement(&store, h_payto(account), 0).unwrap(), kyc::Requirement::Unknown);
    }
    store.close().unwrap();
}

#[test]
fn four_lanes_spend_each_of_ten_thousand_coins_once() {
    let directory = tempfile::tempdir().unwrap();
    let place = StoreConfig::embedded(directory.path().to_owned());
    let store = place.open(&EXCHANGE, 4).unwrap();
    compete(&[(); 4].map(|()| store.clone()));
    store.close().unwrap();
    let report = EmbeddedStore::verify(directory.path()).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}
