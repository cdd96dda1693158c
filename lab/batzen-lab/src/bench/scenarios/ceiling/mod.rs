//! The throughput of one core if it computed nothing but the cryptography that the protocol requires.
//!
//! | operation | mandatory steps |
//! |---|---|
//! | withdraw, a coin | Ed25519 verification (reserve), blind signature; Clause Schnorr: the two R values before |
//! | deposit, a coin | Ed25519 verification (coin), denomination signature, Ed25519 signature (confirmation) |
//! | payment to a person, n coins | purse: Ed25519 verifications (purse, contract, n coins), n denomination signatures, Ed25519 signature; merge: two Ed25519 verifications (merge key, reserve), Ed25519 signature |
//! | order paid with n coins | n deposits; at the merchant backend: n Ed25519 verifications (confirmations), two Ed25519 signatures (contract, receipt) |
//! | refresh to n coins | melt as a deposit; n Ed25519 verifications (links); for both opened candidates a key exchange and n planchets derived; n blind signatures; Clause Schnorr: n times the R values |
//!
//! Each step is measured alone, 64 items at a time, on the fastest path this processor has. Hashes, parsing
//! and all other work of an exchange are excluded.

use std::fmt::{self, Write as _};
use std::hint::black_box;
use std::process::ExitCode;
use std::str::FromStr;

use batzen_cli_support::numbers;
use batzen_crypto::cs::{CsRequest, CsSignRequest};
use batzen_crypto::refresh::{self, Candidate, FreshDenom};
use batzen_crypto::{
    BlindedDenomSignature, BlindedPlanchet, CoinSecrets, CryptoError, CsOperation, CsSignature,
    CsVerifyingKey, DenomKey, DenomPrivateKey, DenomPublicKey, DenomSignature, EcdhePrivateKey,
    EddsaPrivateKey, EddsaPublicKey, EddsaSignature, ExchangeWithdrawValues, ExpandedSigner, HashCode, Path,
    PlanchetMasterSecret, RefreshMasterSecret, RsaPrivateKey, RsaPublicKey, TransferSecret, cs, denom, ecdh,
    eddsa, rsa,
};
use serde::{Deserialize, Serialize};

use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::affinity::{self, Cores};
use crate::bench::load::meter::{self, Effort, Rival};
use crate::bench::results::output;
use crate::bench::results::result::CeilingPart;

mod equation;

/// The cipher of the denominations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Cipher {
    /// Blind RSA with keys of this many bits.
    Rsa(u32),
    /// Clause Blind Schnorr.
    Cs,
}

impl fmt::Display for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rsa(bits) => write!(f, "RSA-{bits}"),
            Self::Cs => f.write_str("CS"),
        }
    }
}

/// The number of one kind of operations in one operation of a scenario. Written `withdraw=1`,
/// `refresh/3.5=0.2`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Share {
    pub(crate) operation: CoinOperation,
    /// Number of them in one operation of the scenario.
    pub(crate) times: f64,
}

/// An operation of the exchange.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum CoinOperation {
    /// A coin withdrawn.
    Withdraw,
    Deposit,
    /// A coin changed into this many fresh coins on average.
    Refresh(f64),
    /// A purse with this many coins, created and merged.
    PushPayment(f64),
    /// An order of a shop, paid with this many coins.
    Order(f64),
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0);
            number.ok_or_else(|| format!("{text:?} is not a positive number"))
        };
        let (name, times) = text.split_once('=').unwrap_or((text, "1"));
        let operation = match name.split_once('/') {
            None if name == "withdraw" => CoinOperation::Withdraw,
            None if name == "deposit" => CoinOperation::Deposit,
            Some(("refresh", fresh)) => CoinOperation::Refresh(number(fresh)?),
            Some(("p2p", coins)) => CoinOperation::PushPayment(number(coins)?),
            Some(("order", coins)) => CoinOperation::Order(number(coins)?),
            _ => {
                return Err(format!(
                    "{name:?} is none of withdraw, deposit, refresh/COINS, p2p/COINS, order/COINS"
                ));
            }
        };
        Ok(Self { operation, times: number(times)? })
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.operation {
            CoinOperation::Withdraw => write!(f, "withdraw={}", self.times),
            CoinOperation::Deposit => write!(f, "deposit={}", self.times),
            CoinOperation::Refresh(fresh) => write!(f, "refresh/{fresh}={}", self.times),
            CoinOperation::PushPayment(coins) => write!(f, "p2p/{coins}={}", self.times),
            CoinOperation::Order(coins) => write!(f, "order/{coins}={}", self.times),
        }
    }
}

/// A required step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    /// Verifying an Ed25519 signature.
    EddsaVerify,
    /// Making an Ed25519 signature with a cached key.
    EddsaSign,
    /// Making a blind signature.
    BlindSign,
    /// Verifying a coin's denomination signature.
    DenomVerify,
    /// The two R values of Clause Blind Schnorr.
    RValues,
    /// Generating a transfer public key, and the key exchange with the old coin.
    KeyExchange,
    /// Deriving a fresh coin's key and planchet from a transfer secret.
    Planchet,
}

impl Step {
    /// All of them, in the order of the variants.
    pub(crate) const ALL: [Self; 7] = [
        Self::EddsaVerify,
        Self::EddsaSign,
        Self::BlindSign,
        Self::DenomVerify,
        Self::RValues,
        Self::KeyExchange,
        Self::Planchet,
    ];

    /// Returns whether the cipher has this step.
    pub(crate) fn exists(self, cipher: Cipher) -> bool {
        self != Self::RValues || cipher == Cipher::Cs
    }

    /// Returns whether the step has an implementation in lanes.
    pub(crate) fn has_lanes(self, cipher: Cipher) -> bool {
        match self {
            // A Clause Schnorr signature is only a hash and an integer multiplication.
            Self::BlindSign => cipher != Cipher::Cs,
            Self::EddsaVerify
            | Self::EddsaSign
            | Self::DenomVerify
            | Self::RValues
            | Self::KeyExchange
            | Self::Planchet => true,
        }
    }

    /// The name of the step in results.
    pub(crate) fn name(self, cipher: Cipher) -> String {
        match self {
            Self::EddsaVerify => "Ed25519 verify".into(),
            Self::EddsaSign => "Ed25519 sign".into(),
            Self::BlindSign => format!("{cipher} blind sign"),
            Self::DenomVerify => format!("{cipher} verify"),
            Self::RValues => "CS R values".into(),
            Self::KeyExchange => "X25519 key and exchange".into(),
            Self::Planchet => format!("{cipher} planchet"),
        }
    }
}

impl CoinOperation {
    /// The steps of one operation, and how often each is needed.
    pub(crate) fn steps(self, cipher: Cipher) -> Vec<(Step, f64)> {
        let spend = [(Step::EddsaVerify, 1.0), (Step::DenomVerify, 1.0), (Step::EddsaSign, 1.0)];
        let mut steps = match self {
            Self::Withdraw => vec![(Step::EddsaVerify, 1.0), (Step::BlindSign, 1.0), (Step::RValues, 1.0)],
            Self::Deposit => spend.to_vec(),
            Self::Refresh(fresh) => {
                let opened = (refresh::KAPPA - 1) as f64;
                let reveal = [
                    (Step::EddsaVerify, fresh),
                    (Step::KeyExchange, opened),
                    (Step::Planchet, opened * fresh),
                    (Step::BlindSign, fresh),
                    (Step::RValues, fresh),
                ];
                spend.into_iter().chain(reveal).collect()
            }
            Self::PushPayment(coins) => {
                vec![(Step::EddsaVerify, 4.0 + coins), (Step::DenomVerify, coins), (Step::EddsaSign, 2.0)]
            }
            Self::Order(coins) => {
                vec![
                    (Step::EddsaVerify, 2.0 * coins),
                    (Step::DenomVerify, coins),
                    (Step::EddsaSign, 2.0 + coins),
                ]
            }
        };
        steps.retain(|(step, _)| step.exists(cipher));
        steps
    }
}

/// The steps of one operation of a scenario, and how often each is needed, in the order of [`Step::ALL`].
pub(crate) fn steps_of(cipher: Cipher, shares: &[Share]) -> Vec<(Step, f64)> {
    let all: Vec<(Step, f64)> = shares
        .iter()
        .flat_map(|share| {
            share.operation.steps(cipher).into_iter().map(|(step, times)| (step, times * share.times))
        })
        .collect();
    Step::ALL
        .iter()
        .map(|step| (*step, all.iter().filter(|(of, _)| of == step).map(|(_, times)| times).sum::<f64>()))
        .filter(|(_, times)| *times > 0.0)
        .collect()
}

/// Items per call: enough to fill all lanes of any path eight times.
const BATCH: usize = 64;
/// Number of denominations in a batch: coins of different values are mixed at a real exchange.
const DENOMINATIONS: usize = 4;
/// Size of the signed messages: between the 160 bytes of a withdrawal and the 432 of a deposit.
const MESSAGE_BYTES: usize = 256;

/// The data that the steps work on: keys, coins and signatures of one cipher.
pub(crate) struct Material {
    cipher: Cipher,
    keys: Vec<DenomPrivateKey>,
    publics: Vec<DenomPublicKey>,
    coins: Vec<Coin>,
    signer: ExpandedSigner,
}

struct Coin {
    denomination: usize,
    values: ExchangeWithdrawValues,
    planchet: BlindedPlanchet,
    hash: HashCode,
    signature: DenomSignature,
    public: EddsaPublicKey,
    message: Vec<u8>,
    coin_sig: EddsaSignature,
    transfer: EcdhePrivateKey,
    secret: TransferSecret,
}

impl Material {
    /// Makes keys and coins.
    pub(crate) fn new(cipher: Cipher) -> Result<Self, CryptoError> {
        let generate = |_| match cipher {
            Cipher::Rsa(bits) => DenomPrivateKey::generate_rsa(bits),
            Cipher::Cs => Ok(DenomPrivateKey::generate_cs()),
        };
        let keys = (0..DENOMINATIONS).map(generate).collect::<Result<Vec<_>, _>>()?;
        let publics: Vec<DenomPublicKey> = keys.iter().map(|key| key.public(0)).collect();
        let signer = ExpandedSigner::new(&EddsaPrivateKey::generate());
        let coins =
            (0..BATCH).map(|index| Coin::new(index, &keys, &publics)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { cipher, keys, publics, coins, signer })
    }

    /// The code of a step, for one batch, with one of the implementations. Verdicts are checked once, so the
    /// results are known to be right. Steps with a single implementation ignore `path`.
    pub(crate) fn rival(&self, step: Step, path: Path) -> Rival<'_> {
        let batch = u32::try_from(BATCH).expect("a small number");
        match step {
            Step::EddsaVerify => {
                let items: Vec<_> =
                    self.coins.iter().map(|coin| (&coin.public, &coin.message[..], &coin.coin_sig)).collect();
                assert!(all(eddsa::verify_batch_with(path, &items)), "made by ourselves");
                Rival::new(batch, move || drop(black_box(eddsa::verify_batch_with(path, black_box(&items)))))
            }
            Step::EddsaSign => {
                let items: Vec<_> = self.coins.iter().map(|coin| (&self.signer, &coin.message[..])).collect();
                Rival::new(batch, move || drop(black_box(eddsa::sign_batch_with(path, black_box(&items)))))
            }
            Step::BlindSign if self.cipher == Cipher::Cs => {
                let items: Vec<_> =
                    self.coins.iter().filter_map(|coin| coin.cs_sign_request(&self.keys)).collect();
                Rival::new(batch, move || drop(black_box(cs::sign_batch(black_box(&items)))))
            }
            Step::BlindSign => {
                let items: Vec<_> =
                    self.coins.iter().filter_map(|coin| coin.rsa_to_sign(&self.keys)).collect();
                Rival::new(batch, move || drop(black_box(rsa::sign_batch_with(path, black_box(&items)))))
            }
            Step::DenomVerify if self.cipher == Cipher::Cs => {
                let items: Vec<_> =
                    self.coins.iter().filter_map(|coin| coin.cs_to_verify(&self.publics)).collect();
                assert!(all(cs::verify_batch_with(path, &items)), "made by ourselves");
                Rival::new(batch, move || drop(black_box(cs::verify_batch_with(path, black_box(&items)))))
            }
            Step::DenomVerify => {
                let items: Vec<_> =
                    self.coins.iter().filter_map(|coin| coin.rsa_to_verify(&self.publics)).collect();
                assert!(all(rsa::verify_batch_with(path, &items)), "made by ourselves");
                Rival::new(batch, move || drop(black_box(rsa::verify_batch_with(path, black_box(&items)))))
            }
            Step::RValues => {
                let items: Vec<_> =
                    self.coins.iter().filter_map(|coin| coin.cs_request(&self.keys)).collect();
                Rival::new(batch, move || drop(black_box(cs::r_pubs_batch_with(path, black_box(&items)))))
            }
            Step::KeyExchange => {
                let keys: Vec<_> = self.coins.iter().map(|coin| &coin.transfer).collect();
                let items: Vec<_> = self.coins.iter().map(|coin| (&coin.transfer, &coin.public)).collect();
                let secrets = ecdh::ecdh_eddsa_pubs_with(path, &items);
                let right =
                    secrets.iter().zip(&self.coins).all(|(made, coin)| made.as_ref() == Ok(&coin.secret));
                assert!(right, "made before");
                Rival::new(batch, move || {
                    drop(black_box(ecdh::public_keys_with(path, black_box(&keys))));
                    drop(black_box(ecdh::ecdh_eddsa_pubs_with(path, black_box(&items))));
                })
            }
            Step::Planchet => {
                let rms = RefreshMasterSecret::from_bytes([7; 32]);
                let fresh: Vec<_> = self
                    .coins
                    .iter()
                    .map(|coin| [FreshDenom { denom: &self.publics[coin.denomination], values: coin.values }])
                    .collect();
                Rival::new(batch, move || {
                    let candidates: Vec<_> = self
                        .coins
                        .iter()
                        .zip(&fresh)
                        .map(|(coin, fresh)| Candidate {
                            secret: &coin.secret,
                            fresh,
                            rms: Some(&rms),
                            old_age: None,
                        })
                        .collect();
                    drop(black_box(refresh::derive_candidates_with(path, black_box(&candidates))));
                })
            }
        }
    }
}

fn all(verdicts: Vec<bool>) -> bool {
    verdicts.into_iter().all(|valid| valid)
}

impl Coin {
    fn rsa_to_sign<'a>(&'a self, keys: &'a [DenomPrivateKey]) -> Option<(&'a RsaPrivateKey, &'a [u8])> {
        match (&keys[self.denomination], &self.planchet) {
            (DenomPrivateKey::Rsa(key), BlindedPlanchet::Rsa { blinded }) => Some((key, blinded)),
            _ => None,
        }
    }

    fn rsa_to_verify<'a>(
        &'a self,
        keys: &'a [DenomPublicKey],
    ) -> Option<(&'a RsaPublicKey, &'a HashCode, &'a [u8])> {
        match (&keys[self.denomination].key, &self.signature) {
            (DenomKey::Rsa(key), DenomSignature::Rsa(signature)) => Some((key, &self.hash, signature)),
            _ => None,
        }
    }

    fn cs_request<'a>(&'a self, keys: &'a [DenomPrivateKey]) -> Option<CsRequest<'a>> {
        match (&keys[self.denomination], &self.planchet) {
            (DenomPrivateKey::Cs(key), BlindedPlanchet::Cs { nonce, .. }) => {
                Some(CsRequest { key: key.secret(), nonce, operation: CsOperation::Withdraw })
            }
            _ => None,
        }
    }

    fn cs_sign_request<'a>(&'a self, keys: &'a [DenomPrivateKey]) -> Option<CsSignRequest<'a>> {
        match (&keys[self.denomination], &self.planchet) {
            (DenomPrivateKey::Cs(key), BlindedPlanchet::Cs { nonce, c0, c1 }) => {
                Some(CsSignRequest { key, nonce, operation: CsOperation::Withdraw, challenges: [c0, c1] })
            }
            _ => None,
        }
    }

    fn cs_to_verify<'a>(
        &'a self,
        keys: &'a [DenomPublicKey],
    ) -> Option<(&'a CsVerifyingKey, &'a HashCode, &'a CsSignature)> {
        match (&keys[self.denomination].key, &self.signature) {
            (DenomKey::Cs(key), DenomSignature::Cs(signature)) => Some((key, &self.hash, signature)),
            _ => None,
        }
    }

    fn new(index: usize, keys: &[DenomPrivateKey], publics: &[DenomPublicKey]) -> Result<Self, CryptoError> {
        let denomination = index % keys.len();
        let (key, public) = (&keys[denomination], &publics[denomination]);
        let master = PlanchetMasterSecret::generate();
        let nonce = master.cs_nonce();
        let values = ExchangeWithdrawValues::derive(key, &nonce, CsOperation::Withdraw);
        let secrets = CoinSecrets::from_master(&master, &values);
        let (planchet, state) = secrets.prepare(public, &values, Some(&nonce), None)?;
        let blind: BlindedDenomSignature =
            denom::blind_sign_batch(&[(key, &planchet, CsOperation::Withdraw)]).remove(0)?;
        let signature = state.unblind(&blind)?;
        let owner = EddsaPrivateKey::generate();
        let mut message = vec![0; MESSAGE_BYTES];
        batzen_crypto::fill_random(&mut message);
        let transfer = EcdhePrivateKey::generate();
        let secret = refresh::transfer_secret(&transfer, &owner.public_key())?;
        Ok(Self {
            denomination,
            values,
            planchet,
            hash: *state.h_coin_pub(),
            signature,
            public: owner.public_key(),
            coin_sig: owner.sign(&message),
            message,
            transfer,
            secret,
        })
    }
}

/// A measured ceiling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ceiling {
    /// Operations of the scenario per second on all the cores together.
    pub(crate) ops_per_s: f64,
    /// The steps that it consists of; times are the mean over the cores.
    pub(crate) parts: Vec<CeilingPart>,
    /// The cores it was measured on, all at the same time; empty: one core, not pinned.
    pub(crate) cores: Vec<usize>,
}

/// The CPU time of each step on each of some cores while all of these are busy.
#[derive(Clone, Debug)]
pub(crate) struct StepTimes {
    cipher: Cipher,
    cores: Vec<usize>,
    steps: Vec<Step>,
    /// For each core, the CPU time of each step in µs.
    by_core: Vec<Vec<f64>>,
}

impl StepTimes {
    fn measure_steps(cipher: Cipher, steps: Vec<Step>, cores: &[usize], effort: Effort) -> Result<Self> {
        let measure_here = || -> Result<Vec<f64>> {
            let material =
                Material::new(cipher).map_err(|error| BenchError::Usage(format!("{cipher}: {error}")))?;
            let mut rivals: Vec<Rival<'_>> =
                steps.iter().map(|step| material.rival(*step, Path::fastest())).collect();
            Ok(meter::best_us(effort, &mut rivals))
        };
        let measure_here = &measure_here;
        let places: Vec<Vec<usize>> =
            if cores.is_empty() { vec![Vec::new()] } else { cores.iter().map(|core| vec![*core]).collect() };
        let by_core = std::thread::scope(|scope| {
            let threads: Vec<_> = places
                .iter()
                .map(|place| scope.spawn(move || affinity::on_cores(place, measure_here)))
                .collect();
            threads
                .into_iter()
                .map(|thread| {
                    thread.join().map_err(|_| BenchError::SetUp("a measurement panicked".into()))??
                })
                .collect::<Result<_, _>>()
        })?;
        Ok(Self { cipher, cores: cores.to_vec(), steps, by_core })
    }

    /// The ceiling of a scenario whose operation consists of these shares. With no operations the ceiling is
    /// zero, meaning that there is none.
    ///
    /// # Panics
    /// If a step is needed that was not measured.
    pub(crate) fn ceiling(&self, shares: &[Share]) -> Ceiling {
        let steps = steps_of(self.cipher, shares);
        let place = |step: Step| {
            self.steps.iter().position(|measured| *measured == step).expect("every step was measured")
        };
        let us_per_op = |times: &Vec<f64>| -> f64 {
            steps.iter().map(|(step, per_op)| per_op * times[place(*step)]).sum()
        };
        let ops_per_s = self.by_core.iter().map(us_per_op).filter(|us| *us > 0.0).map(|us| 1e6 / us).sum();
        let parts = steps
            .iter()
            .map(|(step, per_op)| CeilingPart {
                name: step.name(self.cipher),
                per_op: *per_op,
                us: self.by_core.iter().map(|times| times[place(*step)]).sum::<f64>()
                    / self.by_core.len() as f64,
            })
            .collect();
        Ceiling { ops_per_s, parts, cores: self.cores.clone() }
    }
}

/// Measures the ceiling of a scenario, on all these cores at the same time (or on one core that the system
/// chooses).
///
/// # Errors
/// [`BenchError::Usage`] when RSA keys of this size are not supported, there is nothing to measure, or a core
/// may not be used.
pub(crate) fn measure(cipher: Cipher, shares: &[Share], cores: &[usize], effort: Effort) -> Result<Ceiling> {
    let steps: Vec<Step> = steps_of(cipher, shares).into_iter().map(|(step, _)| step).collect();
    if steps.is_empty() {
        return Err(BenchError::Usage("there is nothing to measure: name at least one operation".into()));
    }
    Ok(StepTimes::measure_steps(cipher, steps, cores, effort)?.ceiling(shares))
}

/// The cipher options of a command line.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct CipherArgs {
    /// Size of RSA denominations
    #[arg(long, value_name = "BITS", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1024..=8192))]
    pub(crate) rsa: u32,
    /// Use Clause Blind Schnorr denominations instead of RSA
    #[arg(long, conflicts_with = "rsa")]
    pub(crate) cs: bool,
}

impl CipherArgs {
    /// The chosen cipher.
    pub(crate) fn cipher(self) -> Cipher {
        if self.cs { Cipher::Cs } else { Cipher::Rsa(self.rsa) }
    }
}

/// Arguments of `batzen-lab bench ceiling`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  batzen-lab bench ceiling --rsa 2048 withdraw=1\n  batzen-lab bench ceiling --cs withdraw=4 deposit=3 refresh/2.5=1"
)]
pub struct CeilingArgs {
    #[command(flatten)]
    cipher: CipherArgs,
    /// Cores to measure on at the same time, for example 0,1 or none [default: the first]
    #[arg(long, value_name = "CORES")]
    cores: Option<Cores>,
    /// Measure for a shorter time
    #[arg(long)]
    quick: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Operations and their number: withdraw=1, deposit=0.8, refresh/COINS=0.2, p2p/COINS=0.1
    #[arg(required = true, value_name = "OPERATION=TIMES")]
    shares: Vec<Share>,
}

/// Runs `batzen-lab bench ceiling`.
///
/// # Errors
/// As `measure`, and when the output cannot be written.
pub fn run(args: &CeilingArgs) -> Result<ExitCode> {
    let cipher = args.cipher.cipher();
    let effort = if args.quick { Effort::QUICK } else { Effort::FULL };
    let first = || affinity::allowed().into_iter().take(1).collect();
    let cores = args.cores.clone().map_or_else(first, |cores| cores.0);
    let ceiling = measure(cipher, &args.shares, &cores, effort)?;
    let text = if args.json { output::json(&ceiling) } else { table(&ceiling) };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn table(ceiling: &Ceiling) -> String {
    let mut text = String::new();
    for part in &ceiling.parts {
        let _ = writeln!(text, "{:<24} {:>8.3} × {:>9.2} µs", part.name, part.per_op, part.us);
    }
    let _ = writeln!(text, "{:<24} {:>23} a second", "ceiling", numbers::number(ceiling.ops_per_s));
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn shares_are_read_and_written() {
        for text in ["withdraw=1", "deposit=0.5", "refresh/3.5=0.25", "p2p/2=1"] {
            assert_eq!(text.parse::<Share>().map(|share| share.to_string()), Ok(text.to_owned()));
        }
        assert_eq!("withdraw".parse::<Share>().map(|share| share.times), Ok(1.0));
        for text in
            ["", "withdraw=0", "withdraw=-1", "deposit=inf", "refresh=1", "refresh/x=1", "withdraw/2", "melt"]
        {
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
    }

    #[test]
    fn steps_are_those_of_the_protocol() {
        let share = |text: &str| text.parse::<Share>().expect("a share");
        let rsa = Cipher::Rsa(2048);
        assert_eq!(steps_of(rsa, &[share("withdraw")]), [(Step::EddsaVerify, 1.0), (Step::BlindSign, 1.0)]);
        assert_eq!(
            steps_of(Cipher::Cs, &[share("withdraw")]),
            [(Step::EddsaVerify, 1.0), (Step::BlindSign, 1.0), (Step::RValues, 1.0)]
        );
        assert_eq!(
            steps_of(rsa, &[share("p2p/3=1")]),
            [(Step::EddsaVerify, 7.0), (Step::EddsaSign, 2.0), (Step::DenomVerify, 3.0)]
        );
        assert_eq!(
            steps_of(rsa, &[share("withdraw=2"), share("deposit=1"), share("refresh/3=0.5")]),
            [
                (Step::EddsaVerify, 2.0 + 1.0 + 0.5 * 4.0),
                (Step::EddsaSign, 1.0 + 0.5),
                (Step::BlindSign, 2.0 + 1.5),
                (Step::DenomVerify, 1.0 + 0.5),
                (Step::KeyExchange, 1.0),
                (Step::Planchet, 3.0),
            ]
        );
    }

    #[test]
    fn cores_add_up() {
        let times = StepTimes {
            cipher: Cipher::Rsa(2048),
            cores: vec![0, 1],
            steps: vec![Step::BlindSign, Step::EddsaVerify],
            by_core: vec![vec![90.0, 10.0], vec![180.0, 20.0]],
        };
        let ceiling = times.ceiling(&["withdraw".parse().unwrap()]);
        assert!((ceiling.ops_per_s - (10_000.0 + 5_000.0)).abs() < 1e-6);
        assert_eq!(
            ceiling.parts[1],
            CeilingPart { name: "RSA-2048 blind sign".into(), per_op: 1.0, us: 135.0 }
        );
        assert!((times.ceiling(&["withdraw=2".parse().unwrap()]).ops_per_s - 7_500.0).abs() < 1e-6);
        assert!(times.ceiling(&[]).ops_per_s.abs() < 1e-6);
    }

    #[test]
    fn every_step_runs_with_both_ciphers() {
        let effort = Effort { rounds: 1, turn: Duration::from_millis(1) };
        let shares = ["withdraw", "deposit", "refresh/2"].map(|text| text.parse::<Share>().expect("a share"));
        for (cipher, parts) in [(Cipher::Rsa(1024), 6), (Cipher::Cs, 7)] {
            let core = affinity::allowed()[0];
            let ceiling = measure(cipher, &shares, &[core], effort).expect("measured");
            assert_eq!(ceiling.parts.len(), parts);
            assert!(ceiling.ops_per_s > 1.0 && ceiling.parts.iter().all(|part| part.us > 0.0), "{ceiling:?}");
        }
        assert!(measure(Cipher::Cs, &[], &[], effort).is_err());
    }
}
