//! Two nodes on one database are offered the same coins at the same time: each coin is spent once, and the
//! node that loses the race has the proof.

use std::sync::{Arc, Barrier};
use std::time::Instant;

use batzen_crypto::{DenomSignature, EddsaPublicKey, EddsaSignature, HashCode, WireSalt};
use batzen_engine::Batcher;
use batzen_exchange::reads::totals::totals;
use batzen_exchange::rules::{
    Command, ConflictReason, DenomTable, Deposit, DepositCoin, ExchangeRules, Planchet, PresentedCoin,
    Refusal, Withdraw,
};
use batzen_pg_cluster::fresh_database;
use batzen_protocol::Money;
use batzen_storage::{EXCHANGE, StoreConfig};
use batzen_tables::exchange::{DenomSerial, Deposits};

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

/// Runs a node with its own connections and its own rules. Returns the outcome for each coin.
fn node(place: &StoreConfig, number: u8, together: &Barrier) -> Vec<Verdict> {
    let store = place.open(&EXCHANGE, 1).unwrap();
    let denoms = Arc::new(DenomTable::load(&store).unwrap());
    let batcher = Batcher::new(Arc::new(ExchangeRules::new(denoms, config())), store.clone());
    let commands: Vec<Command> = (0..COINS).map(|n| payment(number, n)).collect();
    let mut verdicts = Vec::new();
    for batch in commands.chunks(BATCH) {
        together.wait();
        verdicts.extend(batcher.run(batch, &|| at(1)).unwrap());
    }
    store.close().unwrap();
    verdicts
}

#[test]
fn two_nodes_spend_each_of_ten_thousand_coins_once() {
    let place = StoreConfig::Postgres { url: fresh_database() };
    place.prepare(&EXCHANGE).unwrap();
    let world = World::on(place.open(&EXCHANGE, 1).unwrap(), &denoms(), config(), |rules| rules);
    issue(&world);
    let together = Arc::new(Barrier::new(2));
    let start = Instant::now();
    let nodes = [1, 2].map(|number| {
        let (place, together) = (place.clone(), Arc::clone(&together));
        std::thread::spawn(move || node(&place, number, &together))
    });
    let [first, second] = nodes.map(|node| node.join().unwrap());
    let elapsed = start.elapsed();
    assert_eq!((first.len(), second.len()), (COINS as usize, COINS as usize));

    let mut won = [0; 2];
    for (n, verdicts) in (0..).zip(first.iter().zip(&second)) {
        let (winner, loser) = match verdicts {
            (Ok(_), Err(refusal)) => (1, refusal),
            (Err(refusal), Ok(_)) => (2, refusal),
            other => panic!("coin {n}: {other:?}"),
        };
        won[usize::from(winner == 2)] += 1;
        let Refusal::CoinConflict { conflict, .. } = loser else { panic!("coin {n}: {loser:?}") };
        assert!(matches!(conflict.reason, ConflictReason::Insufficient { .. }), "{:?}", conflict.reason);
        assert_eq!(conflict.history.remaining, Money::ZERO, "the proof of coin {n}");
        assert_eq!(conflict.history.items.len(), 1, "the winner's deposit proves it");
    }
    println!("{COINS} coins in {elapsed:?}: {won:?} were won");
    assert!(won.iter().all(|won| *won > 0), "the nodes did not compete: {won:?}");
    assert_eq!(world.store.count::<Deposits>().unwrap(), u64::from(COINS));
    let books = totals(&world.store, &world.denoms).unwrap();
    assert!(books.conserved(), "{books:?}");
    assert_eq!(books.redeemed, m("2").checked_mul(u64::from(COINS)).unwrap());
    assert_eq!(books.outstanding, Money::ZERO);
}
