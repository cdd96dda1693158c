//! `batzen-lab bench p2p`: people pay each other. The payer creates a purse with coins in it, and the receiver merges it
//! into a reserve.

use std::collections::{BTreeMap, VecDeque};

use batzen_crypto::hash::sha512;
use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, EddsaSignature, ExpandedSigner, HashCode, ShortHash};
use batzen_protocol::api::exchange::{
    EncryptedContract, PurseCoin, PurseCreateRequest, PurseMergeConfirmation, PurseMergeRequest,
    ReservePurseRequest,
};
use batzen_protocol::signatures::{
    ExchangeConfirmPurseMerged, SignedMessage, WalletAccountMerge, WalletPurseCreate, WalletPurseDeposit,
    WalletPurseEcontract, WalletPurseMerge,
};
use batzen_protocol::{Amount, Duration, PaytoUri, Timestamp, hash_text};
use clap::Args;
use serde_json::json;

use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::coins::{self, Coin, Reserves};
use crate::bench::load::generator::{Kind, LoadOutcome, Outgoing};
use crate::bench::load::measure::{Description, Stage, WITHDRAWING, Workload, measure, too_many};
use crate::bench::load::prepared::{Job, Prepared};
use crate::bench::load::random::Seed;
use crate::bench::load::wire;
use crate::bench::results::result::Run;
use crate::bench::results::words;
use crate::bench::scenarios::Context;
use crate::bench::scenarios::ceiling::{CipherArgs, CoinOperation, Share};
use crate::bench::scenarios::options::{LoadOptions, RunOptions};
use crate::bench::scenarios::world::{self, CoinKind, Denom};

/// Value of a coin.
const VALUE: u64 = 1;
/// Reserves from which the set-up withdraws the coins.
const RESERVES: usize = 64;
/// People who receive money, by default.
const RECEIVERS: u32 = 1_000;
/// Size of an encrypted contract, in bytes: that of a wallet's contract with a short summary.
const CONTRACT_BYTES: usize = 256;
/// Time for which a purse is open.
const PURSE_OPEN: Duration = Duration::from_secs(86_400);
/// A purse that is merged after it was created.
const MERGED: u32 = 1;
/// A purse that a reserve asks for, which pays the fee.
const ASKED: u32 = 3;
/// No age commitment.
const NO_AGE: ShortHash = ShortHash::from_bytes([0; 32]);
/// Kinds of requests.
const CREATE: usize = 0;
const MERGE: usize = 1;

/// Arguments of `batzen-lab bench p2p`.
#[derive(Args, Clone, Debug)]
pub struct P2pArgs {
    #[command(flatten)]
    cipher: CipherArgs,
    /// Coins in a purse
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    coins: u32,
    /// Number of people who receive money, in turn
    #[arg(long, value_name = "N", default_value_t = RECEIVERS, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    receivers: u32,
    #[command(flatten)]
    load: LoadOptions,
    /// Options of the measurement.
    #[command(flatten)]
    pub run: RunOptions,
}

/// Runs the scenario.
///
/// # Errors
/// As `measure`.
pub fn run(args: &P2pArgs, context: &Context) -> Result<Run> {
    measure(&mut P2p::new(args), &args.load, &args.run, context)
}

/// The load of purses.
pub(super) struct P2p {
    args: P2pArgs,
    seed: Seed,
    receivers: Vec<ExpandedSigner>,
    reserves: Option<Reserves>,
    /// Purses prepared so far; no number is used twice.
    prepared: u32,
    /// When purses were prepared, by the number of the first.
    created: BTreeMap<u64, Timestamp>,
}

/// A payment between two people; its secrets follow from its number.
struct Purse<'a> {
    key: EddsaPrivateKey,
    merge_key: EddsaPrivateKey,
    receiver: &'a ExpandedSigner,
    amount: Amount,
    h_contract_terms: HashCode,
    created: Timestamp,
    open: Duration,
}

impl Purse<'_> {
    fn expiration(&self) -> Timestamp {
        self.created.saturating_add(self.open)
    }

    fn coin(&self, coin: &Coin, denom: &Denom, h_exchange_base_url: HashCode) -> PurseCoin {
        let message = WalletPurseDeposit {
            coin_amount: denom.amount,
            h_denom_pub: denom.h_denom_pub,
            h_age_commitment: NO_AGE,
            purse_pub: self.key.public_key(),
            h_exchange_base_url,
        };
        PurseCoin {
            amount: denom.amount,
            denom_pub_hash: denom.h_denom_pub,
            ub_sig: coin.signature.clone(),
            coin_pub: coin.coin_pub,
            coin_sig: message.sign(&coin.coin_priv),
            age_commitment: None,
            attest: None,
        }
    }

    fn purse_sig(&self) -> EddsaSignature {
        let message = WalletPurseCreate {
            purse_expiration: self.expiration(),
            purse_amount: self.amount,
            h_contract_terms: self.h_contract_terms,
            merge_pub: self.merge_key.public_key(),
            min_age: 0,
        };
        message.sign(&self.key)
    }

    fn sealed(&self, contract: Vec<u8>, contract_pub: EddsaPublicKey) -> EncryptedContract {
        let sealed = WalletPurseEcontract { h_econtract: sha512(&contract), contract_pub };
        EncryptedContract { econtract_sig: sealed.sign(&self.key), econtract: contract.into(), contract_pub }
    }

    /// The payer's request.
    fn create(&self, deposits: Vec<PurseCoin>, contract: Vec<u8>, contract_pub: EddsaPublicKey) -> Vec<u8> {
        let body = PurseCreateRequest {
            amount: self.amount,
            min_age: 0,
            merge_pub: self.merge_key.public_key(),
            purse_sig: self.purse_sig(),
            h_contract_terms: self.h_contract_terms,
            purse_expiration: self.expiration(),
            deposits,
            econtract: Some(self.sealed(contract, contract_pub)),
        };
        wire::post(&format!("/purses/{}/create", self.key.public_key()), &body)
    }

    /// The receiver's reserve, and the signatures of the merge key and of the reserve.
    fn merge_sigs(&self, base_url: &str, flags: u32) -> Result<(PaytoUri, EddsaSignature, EddsaSignature)> {
        let payto = PaytoUri::reserve(base_url, &self.receiver.public_key())
            .map_err(|error| BenchError::set_up("name a reserve", error))?;
        let (purse_pub, merge_timestamp) = (self.key.public_key(), self.created);
        let merge = WalletPurseMerge { merge_timestamp, purse_pub, h_payto: payto.hash() };
        let account = WalletAccountMerge {
            purse_expiration: self.expiration(),
            purse_amount: self.amount,
            purse_fee: Amount::zero(self.amount.currency),
            h_contract_terms: self.h_contract_terms,
            purse_pub,
            merge_timestamp,
            min_age: 0,
            flags,
        };
        Ok((payto, merge.sign(&self.merge_key), account.sign_with(self.receiver)))
    }

    /// The receiver's request.
    fn merge(&self, base_url: &str) -> Result<Vec<u8>> {
        let (payto, merge_sig, reserve_sig) = self.merge_sigs(base_url, MERGED)?;
        let body = PurseMergeRequest {
            payto_uri: payto.into_string(),
            merge_sig,
            reserve_sig,
            merge_timestamp: self.created,
        };
        Ok(wire::post(&format!("/purses/{}/merge", self.key.public_key()), &body))
    }

    /// The request of a receiver who asks for a payment.
    fn ask(&self, contract: Vec<u8>, contract_pub: EddsaPublicKey, base_url: &str) -> Result<Vec<u8>> {
        let (_, merge_sig, reserve_sig) = self.merge_sigs(base_url, ASKED)?;
        let body = ReservePurseRequest {
            purse_value: self.amount,
            min_age: 0,
            purse_fee: Some(Amount::zero(self.amount.currency)),
            merge_pub: self.merge_key.public_key(),
            merge_sig,
            reserve_sig,
            purse_pub: self.key.public_key(),
            purse_sig: self.purse_sig(),
            h_contract_terms: self.h_contract_terms,
            merge_timestamp: self.created,
            purse_expiration: self.expiration(),
            econtract: Some(self.sealed(contract, contract_pub)),
        };
        Ok(wire::post(&format!("/reserves/{}/purse", self.receiver.public_key()), &body))
    }
}

impl P2p {
    /// Purses of one coin for many receivers.
    pub(super) fn new(args: &P2pArgs) -> Self {
        let seed = args.load.target.seed(args.load.seed).part("p2p");
        let receivers = (0..u64::from(args.receivers))
            .map(|index| ExpandedSigner::new(&EddsaPrivateKey::from_bytes(seed.bytes("receiver", index))))
            .collect();
        Self { args: args.clone(), seed, receivers, reserves: None, prepared: 0, created: BTreeMap::new() }
    }

    /// Purses of one coin.
    pub(super) fn of_one_coin(cipher: CipherArgs, load: LoadOptions, run: RunOptions) -> Self {
        Self::new(&P2pArgs { cipher, coins: 1, receivers: RECEIVERS, load, run })
    }

    fn purse(&self, number: u64, created: Timestamp) -> Purse<'_> {
        let receiver = usize::try_from(number % self.receivers.len() as u64).expect("an index");
        Purse {
            key: EddsaPrivateKey::from_bytes(self.seed.bytes("purse", number)),
            merge_key: EddsaPrivateKey::from_bytes(self.seed.bytes("merge", number)),
            receiver: &self.receivers[receiver],
            amount: world::units(VALUE * u64::from(self.args.coins)),
            h_contract_terms: HashCode::from_bytes(self.seed.bytes("contract", number)),
            created,
            open: PURSE_OPEN,
        }
    }
}

/// Purses that reserves ask for and nobody fills: they cost nothing. Each has a reserve of its own.
#[derive(Clone)]
pub(super) struct EmptyPurses {
    seed: Seed,
    base_url: String,
    created: Timestamp,
    open: Duration,
    contract: Vec<u8>,
}

impl EmptyPurses {
    /// Purses at this exchange that are open for so long, with contracts of this size.
    pub(super) fn new(seed: &Seed, base_url: String, open: Duration, contract_bytes: usize) -> Self {
        Self { seed: *seed, base_url, created: world::now(), open, contract: vec![b'x'; contract_bytes] }
    }

    fn key(&self, name: &str, number: u64) -> EddsaPrivateKey {
        EddsaPrivateKey::from_bytes(self.seed.bytes(name, number))
    }

    fn receiver(&self, number: u64) -> ExpandedSigner {
        ExpandedSigner::new(&self.key("empty-receiver", number))
    }

    fn purse<'a>(&self, number: u64, receiver: &'a ExpandedSigner) -> Purse<'a> {
        Purse {
            key: self.key("empty", number),
            merge_key: self.key("empty-merge", number),
            receiver,
            amount: world::units(VALUE),
            h_contract_terms: HashCode::from_bytes(self.seed.bytes("empty-contract", number)),
            created: self.created,
            open: self.open,
        }
    }

    /// The public key of a purse.
    pub(super) fn public(&self, number: u64) -> EddsaPublicKey {
        self.key("empty", number).public_key()
    }

    /// The request for it.
    pub(super) fn ask(&self, number: u64) -> Result<Vec<u8>> {
        let contract_pub = self.key("empty-contract-key", number).public_key();
        self.purse(number, &self.receiver(number)).ask(self.contract.clone(), contract_pub, &self.base_url)
    }

    /// The request that merges it into the reserve of another one, which is refused.
    pub(super) fn merge(&self, number: u64) -> Result<Vec<u8>> {
        self.purse(number, &self.receiver(number - 1)).merge(&self.base_url)
    }
}

impl Workload for P2p {
    type Script = Prepared;

    fn describe(&self) -> Description {
        let cipher = self.args.cipher.cipher();
        let coins = self.args.coins;
        let coins_text = words::coins(coins.into());
        Description {
            scenario: "p2p",
            title: format!("p2p {cipher}, purses of {coins_text}, created and merged"),
            unit: "purses",
            kinds: vec![Kind::uncounted("create"), Kind::counted("merge")],
            parameters: BTreeMap::from([
                ("coins".into(), json!(coins)),
                ("receivers".into(), json!(self.args.receivers)),
            ]),
            cipher,
            coins: vec![CoinKind { value: VALUE, cipher }],
            ops_per_job: 1.0,
            remarks: Vec::new(),
        }
    }

    fn set_up(&mut self, stage: &mut Stage<'_>) -> Result<()> {
        self.reserves = Some(Reserves::open(RESERVES, &self.seed, stage.world, stage.progress)?);
        Ok(())
    }

    fn prepare(&mut self, ops: u64, stage: &mut Stage<'_>) -> Result<Vec<Prepared>> {
        let (coins_each, first) = (self.args.coins, self.prepared);
        let purses = u32::try_from(ops).map_err(|_| too_many())?;
        let end = first.checked_add(purses).ok_or_else(too_many)?;
        end.checked_mul(coins_each).ok_or_else(too_many)?;
        self.prepared = end;
        let created = world::now();
        self.created.insert(first.into(), created);
        let count = purses as usize * coins_each as usize;
        let reserves = self.reserves.as_ref().expect("the set-up has made them");
        let coins = stage.coins(WITHDRAWING, reserves, &self.seed, first * coins_each, count)?;
        let (denom, base_url) = (&stage.world.denoms[0], stage.world.base_url());
        let h_base_url = hash_text(&base_url);
        let bar = stage.progress.bar("preparing purses", u64::from(purses));
        let made = stage.prep_pool.make_shown(purses as usize, &bar, |job| {
            let number = u64::from(first) + job as u64;
            let purse = self.purse(number, created);
            let coins = &coins[job * coins_each as usize..][..coins_each as usize];
            let deposits = coins.iter().map(|coin| purse.coin(coin, denom, h_base_url)).collect();
            let contract: Vec<u8> = (0..CONTRACT_BYTES.div_ceil(64) as u64)
                .flat_map(|part| self.seed.bytes::<64>(&format!("contract-{part}"), number))
                .collect();
            let contract_pub =
                EddsaPrivateKey::from_bytes(self.seed.bytes("contract-key", number)).public_key();
            let requests = VecDeque::from([
                Outgoing { bytes: purse.create(deposits, contract, contract_pub), kind: CREATE },
                Outgoing { bytes: purse.merge(&base_url)?, kind: MERGE },
            ]);
            Ok(Job { number, ops: 1, requests })
        })?;
        Ok(Prepared::share(made, stage.threads, stage.clients))
    }

    fn check(&mut self, scripts: Vec<Prepared>, stage: &mut Stage<'_>) -> Result<u64> {
        let h_provider_url = hash_text(&stage.world.base_url());
        let mut checked = 0;
        for sample in scripts.into_iter().flat_map(|script| script.samples) {
            let answer: PurseMergeConfirmation = coins::read("merge", &sample.body)?;
            let (_, created) = self.created.range(..=sample.number).next_back().expect("it was prepared");
            let purse = self.purse(sample.number, *created);
            let message = ExchangeConfirmPurseMerged {
                exchange_time: answer.exchange_timestamp,
                purse_expiration: purse.expiration(),
                amount_without_fee: purse.amount,
                purse_pub: purse.key.public_key(),
                reserve_pub: purse.receiver.public_key(),
                h_contract_terms: purse.h_contract_terms,
                h_provider_url,
            };
            if !stage.world.signing_keys.contains(&answer.exchange_pub)
                || answer.merge_amount != purse.amount
                || !message.verify(&answer.exchange_pub, &answer.exchange_sig)
            {
                let purse_pub = purse.key.public_key();
                return Err(BenchError::WrongAnswer(format!(
                    "the confirmation for purse {purse_pub} is wrong"
                )));
            }
            checked += 1;
        }
        Ok(checked)
    }

    fn shares(&self, _outcome: Option<&LoadOutcome>) -> Vec<Share> {
        vec![Share { operation: CoinOperation::PushPayment(f64::from(self.args.coins)), times: 1.0 }]
    }
}
