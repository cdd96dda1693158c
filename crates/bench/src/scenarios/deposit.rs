//! `batzen bench deposit` and `batch-deposit`: coins pay merchants.

use std::collections::BTreeMap;

use batzen_crypto::{EddsaPublicKey, EddsaSignature, HashCode, ShortHash};
use batzen_protocol::api::exchange::{
    BatchDepositCoin, BatchDepositConfirmation, BatchDepositRequest, DepositConfirmation, DepositRequest,
};
use batzen_protocol::signatures::{ExchangeConfirmDeposit, SignedMessage, WalletCoinDeposit};
use batzen_protocol::{Amount, Duration, Timestamp};
use clap::Args;
use serde_json::json;

use crate::BenchError;
use crate::ceiling::{CipherArgs, Operation, Share};
use crate::coins::{self, Coin, Merchant, Mint, Reserves};
use crate::load::Outcome;
use crate::measure::{Description, Stage, Workload, measure};
use crate::options::{LoadOptions, RunOptions};
use crate::prepared::{Job, Prepared, SAMPLE_EVERY};
use crate::random::{Chooser, Merchants, Seed};
use crate::result::Run;
use crate::scenarios::Context;
use crate::wire;
use crate::world::{self, CoinKind, Denom};

/// Value of a coin.
const VALUE: u64 = 1;
/// Merchants among whom payments choose.
pub const MERCHANTS: usize = 1_000;
/// Reserves of the set-up.
const RESERVES: usize = 64;
/// No extension policy.
const NO_POLICY: HashCode = HashCode::from_bytes([0; 64]);
/// No age commitment.
const NO_AGE: ShortHash = ShortHash::from_bytes([0; 32]);

/// Arguments of `batzen bench deposit`.
#[derive(Args, Clone, Debug)]
pub struct DepositArgs {
    #[command(flatten)]
    cipher: CipherArgs,
    /// How payments choose among 1,000 merchants
    #[arg(long, value_enum, default_value_t = Merchants::Uniform)]
    merchants: Merchants,
    #[command(flatten)]
    load: LoadOptions,
    /// Options of the measurement.
    #[command(flatten)]
    pub run: RunOptions,
}

/// Arguments of `batzen bench batch-deposit`.
#[derive(Args, Clone, Debug)]
pub struct BatchDepositArgs {
    /// Coins in a request
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=256))]
    batch: u32,
    /// What both have.
    #[command(flatten)]
    pub deposit: DepositArgs,
}

/// Runs `deposit`: one coin a request.
///
/// # Errors
/// As [`measure`].
pub fn run(args: &DepositArgs, context: &Context) -> Result<Run, BenchError> {
    go(args, None, context)
}

/// Runs `batch-deposit`.
///
/// # Errors
/// As [`measure`].
pub fn run_batch(args: &BatchDepositArgs, context: &Context) -> Result<Run, BenchError> {
    go(&args.deposit, Some(args.batch as usize), context)
}

fn go(args: &DepositArgs, batch: Option<usize>, context: &Context) -> Result<Run, BenchError> {
    let seed = Seed::new(args.load.seed).part("deposit");
    let mut workload = DepositLoad {
        payments: Payments::new(args.merchants, args.load.with_workers, &seed),
        args: args.clone(),
        batch,
        seed,
        reserves: None,
        prepared: 0,
        kept: BTreeMap::new(),
    };
    measure(&mut workload, &args.load, &args.run, context)
}

/// Makes payments to merchants.
pub struct Payments {
    merchants: Vec<Merchant>,
    chooser: Chooser,
    seed: Seed,
    made: u64,
    with_workers: bool,
}

/// A payment: what is the same for all its coins.
#[derive(Clone, Debug)]
pub struct Payment {
    merchant: usize,
    h_contract_terms: HashCode,
    timestamp: Timestamp,
    wire_deadline: Timestamp,
}

impl Payments {
    /// Chooses merchants in this way. With workers, deposits are due at once; else in an hour, when the run is over.
    #[must_use]
    pub fn new(merchants: Merchants, with_workers: bool, seed: &Seed) -> Self {
        Self {
            chooser: Chooser::new(merchants, MERCHANTS, seed.numbers("merchants")),
            merchants: Merchant::several(MERCHANTS, seed),
            seed: seed.part("contracts"),
            made: 0,
            with_workers,
        }
    }

    /// The next one.
    pub fn next_payment(&mut self) -> Payment {
        let timestamp = world::now();
        let hour = Duration::from_secs(3_600);
        self.made += 1;
        Payment {
            merchant: self.chooser.draw(),
            h_contract_terms: HashCode::from_bytes(self.seed.bytes("contract", self.made)),
            timestamp,
            wire_deadline: if self.with_workers { timestamp } else { timestamp.saturating_add(hour) },
        }
    }

    /// The coin's signature for its part of the payment.
    #[must_use]
    pub fn sign(
        &self,
        payment: &Payment,
        coin: &CoinRef<'_>,
        denom: &Denom,
        amount: Amount,
    ) -> EddsaSignature {
        let merchant = &self.merchants[payment.merchant];
        WalletCoinDeposit {
            h_contract_terms: payment.h_contract_terms,
            h_age_commitment: NO_AGE,
            h_policy: NO_POLICY,
            h_wire: merchant.h_wire,
            h_denom_pub: denom.h_denom_pub,
            wallet_timestamp: payment.timestamp,
            refund_deadline: Timestamp::ZERO,
            amount_with_fee: amount,
            deposit_fee: Amount::zero(amount.currency),
            merchant_pub: merchant.key,
        }
        .sign(coin.coin_priv)
    }

    /// The HTTP request in which one coin pays.
    #[must_use]
    pub fn deposit(&self, payment: &Payment, coin: &Coin, denom: &Denom) -> Vec<u8> {
        let merchant = &self.merchants[payment.merchant];
        let body = DepositRequest {
            merchant_payto_uri: merchant.payto_uri.clone(),
            wire_salt: merchant.wire_salt,
            contribution: denom.amount,
            denom_pub_hash: denom.h_denom_pub,
            ub_sig: coin.signature.clone(),
            merchant_pub: merchant.key,
            h_contract_terms: payment.h_contract_terms,
            h_age_commitment: None,
            coin_sig: self.sign(payment, &CoinRef::of(coin), denom, denom.amount),
            timestamp: payment.timestamp,
            refund_deadline: None,
            wire_transfer_deadline: payment.wire_deadline,
            policy: None,
        };
        wire::post(&format!("/coins/{}/deposit", coin.coin_pub), &body)
    }

    /// The HTTP request in which several coins pay.
    #[must_use]
    pub fn batch_deposit(&self, payment: &Payment, coins: Vec<BatchDepositCoin>) -> Vec<u8> {
        let merchant = &self.merchants[payment.merchant];
        let body = BatchDepositRequest {
            merchant_payto_uri: merchant.payto_uri.clone(),
            wire_salt: merchant.wire_salt,
            merchant_pub: merchant.key,
            h_contract_terms: payment.h_contract_terms,
            coins,
            timestamp: payment.timestamp,
            refund_deadline: None,
            wire_transfer_deadline: payment.wire_deadline,
            policy: None,
        };
        wire::post("/batch-deposit", &body)
    }

    /// A coin's part of a batch.
    #[must_use]
    pub fn part(&self, payment: &Payment, coin: &Coin, denom: &Denom, amount: Amount) -> BatchDepositCoin {
        BatchDepositCoin {
            contribution: amount,
            denom_pub_hash: denom.h_denom_pub,
            ub_sig: coin.signature.clone(),
            coin_pub: coin.coin_pub,
            h_age_commitment: None,
            coin_sig: self.sign(payment, &CoinRef::of(coin), denom, amount),
        }
    }

    /// What the exchange confirms for a coin.
    #[must_use]
    pub fn confirmation(
        &self,
        payment: &Payment,
        coin_pub: EddsaPublicKey,
        amount: Amount,
        exchange_timestamp: Timestamp,
    ) -> ExchangeConfirmDeposit {
        let merchant = &self.merchants[payment.merchant];
        ExchangeConfirmDeposit {
            h_contract_terms: payment.h_contract_terms,
            h_wire: merchant.h_wire,
            h_policy: NO_POLICY,
            exchange_timestamp,
            wire_deadline: payment.wire_deadline,
            refund_deadline: Timestamp::ZERO,
            amount_without_fee: amount,
            coin_pub,
            merchant_pub: merchant.key,
        }
    }
}

/// The keys of a coin.
#[derive(Clone, Copy, Debug)]
pub struct CoinRef<'a> {
    /// The private key.
    pub coin_priv: &'a batzen_crypto::EddsaPrivateKey,
}

impl<'a> CoinRef<'a> {
    /// Those of a coin.
    #[must_use]
    pub fn of(coin: &'a Coin) -> Self {
        Self { coin_priv: &coin.coin_priv }
    }
}

struct DepositLoad {
    args: DepositArgs,
    /// Coins of a batch; none: single deposits.
    batch: Option<usize>,
    seed: Seed,
    payments: Payments,
    reserves: Option<Reserves>,
    /// Jobs prepared so far.
    prepared: u32,
    /// What is needed to check the answers that are kept, by the job's number.
    kept: BTreeMap<u64, (Payment, Vec<EddsaPublicKey>)>,
}

impl Workload for DepositLoad {
    type Script = Prepared;

    fn describe(&self) -> Description {
        let cipher = self.args.cipher.cipher();
        let (scenario, coins) = match self.batch {
            None => ("deposit", "one coin".to_owned()),
            Some(batch) => ("batch-deposit", format!("{batch} coins")),
        };
        let merchants = match self.args.merchants {
            Merchants::Uniform => "",
            Merchants::One => ", one merchant",
            Merchants::Zipf => ", merchants by Zipf's law",
        };
        let mut parameters = BTreeMap::from([("merchants".into(), json!(self.args.merchants.name()))]);
        if let Some(batch) = self.batch {
            parameters.insert("batch".into(), json!(batch));
        }
        Description {
            scenario,
            title: format!("{scenario} {cipher}, {coins} a request{merchants}"),
            unit: "coins",
            kinds: vec![scenario],
            parameters,
            cipher,
            coins: vec![CoinKind { value: VALUE, cipher }],
            ops_per_job: self.batch.unwrap_or(1) as f64,
            remarks: Vec::new(),
        }
    }

    fn set_up(&mut self, stage: &mut Stage<'_>) -> Result<(), BenchError> {
        self.reserves = Some(Reserves::open(RESERVES, &self.seed, stage.world, stage.progress)?);
        Ok(())
    }

    fn prepare(&mut self, ops: u64, stage: &mut Stage<'_>) -> Result<Vec<Prepared>, BenchError> {
        let batch = self.batch.unwrap_or(1);
        let jobs = usize::try_from(ops).unwrap_or(usize::MAX).div_ceil(batch);
        let first = self.prepared;
        self.prepared = u32::try_from(jobs)
            .ok()
            .and_then(|jobs| first.checked_add(jobs))
            .filter(|jobs| jobs.checked_mul(batch as u32).is_some())
            .ok_or_else(|| {
                BenchError::Usage("more than 2^32 coins: choose a shorter time or a lower rate".into())
            })?;
        let reserves = self.reserves.as_ref().expect("the set-up has made them");
        let bar = stage.progress.bar("withdrawing coins", (jobs * batch) as u64);
        let mint = Mint { world: stage.world, workshop: stage.workshop, reserves, seed: &self.seed };
        let coins = mint.coins(first * batch as u32, jobs * batch, |_| 0, &bar)?;
        drop(bar);
        let payments: Vec<Payment> = (0..jobs).map(|_| self.payments.next_payment()).collect();
        let denom = &stage.world.denoms[0];
        let bar = stage.progress.bar("preparing payments", jobs as u64);
        let made = stage.workshop.make_shown(jobs, &bar, |job| {
            let (payment, coins) = (&payments[job], &coins[job * batch..(job + 1) * batch]);
            let bytes = match self.batch {
                None => self.payments.deposit(payment, &coins[0], denom),
                Some(_) => {
                    let part = |coin| self.payments.part(payment, coin, denom, denom.amount);
                    self.payments.batch_deposit(payment, coins.iter().map(part).collect())
                }
            };
            Ok(Job::single(u64::from(first) + job as u64, batch as u64, bytes))
        })?;
        for (number, (payment, coins)) in
            (u64::from(first)..).zip(payments.into_iter().zip(coins.chunks(batch)))
        {
            if number.is_multiple_of(SAMPLE_EVERY) {
                self.kept.insert(number, (payment, coins.iter().map(|coin| coin.coin_pub).collect()));
            }
        }
        Ok(Prepared::share(made, stage.threads, stage.clients))
    }

    fn check(&mut self, scripts: Vec<Prepared>, stage: &mut Stage<'_>) -> Result<u64, BenchError> {
        let amount = stage.world.denoms[0].amount;
        let mut checked = 0;
        for sample in scripts.into_iter().flat_map(|script| script.samples) {
            let Some((payment, coin_pubs)) = self.kept.get(&sample.number) else { continue };
            let (time, key, signatures) = match self.batch {
                None => {
                    let answer: DepositConfirmation = coins::read("deposit", &sample.body)?;
                    (answer.exchange_timestamp, answer.exchange_pub, vec![answer.exchange_sig])
                }
                Some(_) => {
                    let answer: BatchDepositConfirmation = coins::read("batch-deposit", &sample.body)?;
                    let signatures =
                        answer.exchange_sigs.iter().map(|signature| signature.exchange_sig).collect();
                    (answer.exchange_timestamp, answer.exchange_pub, signatures)
                }
            };
            if !stage.world.signing_keys.contains(&key) || signatures.len() != coin_pubs.len() {
                return Err(BenchError::WrongAnswer("a confirmation by an unknown key, or too short".into()));
            }
            for (coin_pub, signature) in coin_pubs.iter().zip(&signatures) {
                if !self.payments.confirmation(payment, *coin_pub, amount, time).verify(&key, signature) {
                    return Err(BenchError::WrongAnswer(format!(
                        "the confirmation for coin {coin_pub} is wrong"
                    )));
                }
                checked += 1;
            }
        }
        Ok(checked)
    }

    fn shares(&self, _outcome: Option<&Outcome>) -> Vec<Share> {
        vec![Share { operation: Operation::Deposit, times: 1.0 }]
    }
}
