//! Generated rows in bulk, inserted through the rules: reserves, withdrawals, deposits and prepared transfers at an
//! exchange, credits at a bank. The rules do not look at signatures, so none are made.

use std::path::Path;

use batzen_bank::BankConfig;
use batzen_bank::rules::{AddIncoming, Command as BankCommand};
use batzen_crypto::{DenomSignature, EddsaPublicKey, EddsaSignature, HashCode, WireSalt, Wtid};
use batzen_engine::Batcher;
use batzen_exchange::rules::{
    Aggregate, Answer, Command, Credit, Credits, Deposit, DepositCoin, Planchet, PresentedCoin, Trigger,
    Withdraw,
};
use batzen_protocol::Timestamp;
use batzen_protocol::payto::h_payto;
use batzen_tables::exchange::{AccountId, BlindSignature, DenomSerial, DepositTarget};

use super::workers::{InProcessExchange, clock, currency, money, payto};
use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::random::Numbers;

/// Slightly longer than a tick of the aggregator's clock.
const TICK: std::time::Duration = std::time::Duration::from_millis(1_100);
/// Commands in one commit of the set-up.
const BATCH: usize = 256;
/// Coins in one deposit of the set-up.
const COINS: usize = 8;

/// Fills in `deposits` due deposits for merchants in turn, with RSA-2048 signatures of coins.
pub(crate) fn deposits(
    in_process: &InProcessExchange,
    deposits: u64,
    merchants: u64,
    seed: u64,
) -> Result<()> {
    let coins = (COINS as u64).min(deposits.div_ceil(merchants));
    let filler = in_process.filler();
    let mut batch = Vec::with_capacity(BATCH);
    for payment in payments(deposits, coins, merchants, &mut Numbers::new(seed)) {
        batch.push(payment);
        if batch.len() == BATCH {
            decide(&filler, &batch)?;
            batch.clear();
        }
    }
    decide(&filler, &batch)?;
    // They count as due from the aggregator's next clock tick on.
    std::thread::sleep(TICK);
    Ok(())
}

/// Payments of `coins` coins in all to merchants in turn, with RSA-2048 signatures of coins; due at once.
pub(crate) fn payments(
    coins: u64,
    coins_per_payment: u64,
    merchants: u64,
    random: &mut Numbers,
) -> impl Iterator<Item = Command> {
    let due = Timestamp::from_micros(clock().as_micros().saturating_sub(1_000_000));
    let keys: Vec<EddsaPublicKey> =
        (0..merchants).map(|_| EddsaPublicKey::from_bytes(random.bytes())).collect();
    let mut left = coins;
    let merchants = (0..keys.len()).cycle();
    merchants.map_while(move |merchant| {
        let count = left.min(coins_per_payment);
        left -= count;
        let payto_uri = payto(&format!("m{merchant}"));
        (count > 0).then(|| {
            Command::Deposit(Deposit {
                merchant_pub: keys[merchant],
                h_contract_terms: HashCode::from_bytes(random.bytes()),
                h_payto: h_payto(&payto_uri),
                payto_uri,
                wire_salt: WireSalt::from_bytes([7; 16]),
                wallet_time: due,
                refund_deadline: due,
                wire_deadline: due,
                coins: (0..count).map(|_| coin(random)).collect(),
            })
        })
    })
}

/// Fills in reserves with more money than any run withdraws.
pub(crate) fn reserves(
    in_process: &InProcessExchange,
    count: u64,
    random: &mut Numbers,
) -> Result<Vec<EddsaPublicKey>> {
    let keys: Vec<EddsaPublicKey> = (0..count).map(|_| EddsaPublicKey::from_bytes(random.bytes())).collect();
    let payto_uri = payto("customer");
    let (h_payto, time) = (h_payto(&payto_uri), clock());
    let account = AccountId::of_payto(&in_process.app().core.config.accounts[0].payto_uri);
    let credit = |(bank_row, reserve_pub): (u64, &EddsaPublicKey)| Credit {
        bank_row,
        reserve_pub: *reserve_pub,
        amount: money("1000000000"),
        payto_uri: payto_uri.clone(),
        h_payto,
        time,
    };
    let credits: Vec<Credit> = (1..).zip(&keys).map(credit).collect();
    let filler = in_process.filler();
    for credits in credits.chunks(BATCH) {
        let cursor = credits.last().map_or(0, |credit| credit.bank_row);
        let page = Credits { account, credits: credits.to_vec(), cursor, range: None };
        decide(&filler, &[Command::Credits(page)])?;
    }
    Ok(keys)
}

/// Withdrawals of `coins` coins in all from reserves in turn, with blind signatures of RSA-2048.
pub(crate) fn withdrawals(
    coins: u64,
    coins_per_request: u64,
    reserves: &[EddsaPublicKey],
    random: &mut Numbers,
) -> impl Iterator<Item = Command> {
    let mut left = coins;
    reserves.iter().cycle().map_while(move |reserve_pub| {
        let count = left.min(coins_per_request);
        left -= count;
        (count > 0).then(|| {
            Command::Withdraw(Withdraw {
                reserve_pub: *reserve_pub,
                planchets: (0..count).map(|_| planchet(random)).collect(),
                batch: count > 1,
                origin: None,
            })
        })
    })
}

fn planchet(random: &mut Numbers) -> Planchet {
    Planchet {
        denom: DenomSerial(1),
        h_coin_ev: HashCode::from_bytes(random.bytes()),
        reserve_sig: EddsaSignature::from_bytes(random.bytes()),
        ev_sig: Some(BlindSignature::Rsa(random.bytes::<256>().to_vec())),
        nonce: None,
    }
}

fn coin(random: &mut Numbers) -> DepositCoin {
    DepositCoin {
        coin: PresentedCoin {
            coin_pub: EddsaPublicKey::from_bytes(random.bytes()),
            denom: DenomSerial(1),
            h_age: None,
            denom_sig: DenomSignature::Rsa(random.bytes::<256>().to_vec()),
        },
        contribution: money("1.5"),
        coin_sig: EddsaSignature::from_bytes(random.bytes()),
    }
}

/// Executes commands as one batch.
pub(crate) fn decide(
    filler: &Batcher<batzen_exchange::rules::ExchangeRules>,
    commands: &[Command],
) -> Result<Vec<Answer>> {
    let verdicts = filler
        .run(commands, &clock)
        .map_err(|error| BenchError::set_up("the store cannot be filled", error))?;
    verdicts
        .into_iter()
        .map(|verdict| verdict.map_err(|refusal| BenchError::set_up("the set-up was refused", refusal)))
        .collect()
}

/// Fills in transfers that are decided but not sent, each to its own merchant.
pub(crate) fn transfers(in_process: &InProcessExchange, transfers: u64, seed: u64) -> Result<()> {
    deposits(in_process, transfers, transfers, seed)?;
    let app = in_process.app();
    let now = app.core.rules.aggregation_time(clock());
    let account = AccountId::of_payto(&app.core.config.accounts[0].payto_uri);
    let filler = in_process.filler();
    loop {
        let (targets, _) =
            batzen_exchange::reads::read::due_targets(&app.core.store, now, &Default::default(), 4 * BATCH)
                .map_err(|error| BenchError::set_up("the store cannot be read", error))?;
        if targets.is_empty() {
            return Ok(());
        }
        let aggregate = |target: DepositTarget| {
            Command::Aggregate(Aggregate {
                target,
                method: "x-taler-bank".to_owned(),
                account,
                until: now,
                deposits_max: 1_000,
                trigger: Trigger::Due,
                complete: true,
                wtid: Wtid::random(),
                request_uid: HashCode::random(),
                payee: None,
            })
        };
        let commands: Vec<Command> = targets.into_iter().map(aggregate).collect();
        decide(&filler, &commands)?;
    }
}

/// Creates a bank with `credits` credits to the exchange's account, each with its own reserve key.
pub(crate) fn bank(data: &Path, credits: u64, seed: u64) -> Result<()> {
    let failed = |error| BenchError::set_up("the bank cannot be filled", error);
    let mut random = Numbers::new(seed);
    let credit = move |n: u64| {
        BankCommand::AddIncoming(AddIncoming {
            id: random.bytes(),
            debit_account: format!("customer{}", n % 1_000),
            credit_account: "exchange".to_owned(),
            amount: money("12.5"),
            reserve_pub: EddsaPublicKey::from_bytes(random.bytes()),
        })
    };
    let config = BankConfig {
        store: batzen_bank::StoreConfig::embedded(data.to_owned()),
        ..BankConfig::new(currency())
    };
    let runtime = tokio::runtime::Runtime::new().map_err(|error| BenchError::set_up("no runtime", error))?;
    let filling = batzen_bank::offline::execute_all(config, Box::new((0..credits).map(credit)));
    // On a thread of its own: callers may be in a runtime already.
    std::thread::scope(|scope| scope.spawn(|| runtime.block_on(filling)).join())
        .expect("filling does not panic")
        .map_err(failed)
}
