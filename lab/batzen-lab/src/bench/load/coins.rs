//! Reserves, coins and payments in bulk. Everything costly is computed on all cores before the load begins.

use std::sync::Arc;

use batzen_crypto::refresh::FreshCoin;
use batzen_crypto::{
    BlindedDenomSignature, BlindedPlanchet, BlindingSecret, CoinSecrets, CsNonce, DenomKey, DenomSignature,
    EddsaPrivateKey, EddsaPublicKey, ExchangeWithdrawValues, ExpandedSigner, PlanchetMasterSecret,
    UnblindState, denom, kdf, rsa,
};
use batzen_protocol::api::exchange::{
    BatchWithdrawRequest, BlindSignatures, CsrWithdrawRequest, ReserveRequest, WithdrawRequest,
    WithdrawValues,
};
use batzen_protocol::signatures::{SignedMessage, WalletReserveStatus, WalletReserveWithdraw};
use rayon::prelude::*;

use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::progress::{Bar, Progress};
use crate::bench::load::random::Seed;
use crate::bench::load::wire;
use crate::bench::scenarios::world::{self, Denom, World};

/// Coins of one request of the set-up.
const SET_UP_BATCH: usize = 64;
/// Coins that the set-up handles at a time: enough for all cores, without using too much memory.
const SET_UP_CHUNK: usize = 128 * SET_UP_BATCH;

/// A pool of one thread per core that prepares the load.
#[derive(Clone)]
pub(crate) struct PrepPool(Arc<rayon::ThreadPool>);

impl PrepPool {
    /// Starts one thread per core, wherever the caller is pinned.
    pub(crate) fn new(cores: &[usize]) -> Result<Self> {
        let pool = crate::bench::load::affinity::on_cores(cores, || {
            rayon::ThreadPoolBuilder::new()
                .num_threads(cores.len())
                .thread_name(|index| format!("prepare-{index}"))
                .build()
        })?;
        pool.map(|pool| Self(Arc::new(pool))).map_err(|error| BenchError::set_up("cannot prepare", error))
    }

    /// Makes `count` things, in order.
    pub(crate) fn make<T: Send>(
        &self,
        count: usize,
        make: impl Fn(usize) -> Result<T> + Send + Sync,
    ) -> Result<Vec<T>> {
        self.0.install(|| (0..count).into_par_iter().map(make).collect())
    }

    /// As [`PrepPool::make`], with a progress bar.
    pub(crate) fn make_shown<T: Send>(
        &self,
        count: usize,
        bar: &Bar,
        make: impl Fn(usize) -> Result<T> + Send + Sync,
    ) -> Result<Vec<T>> {
        self.make(count, |index| {
            let made = make(index);
            bar.step();
            made
        })
    }
}

/// An error of a coin's cryptography. It occurs only if the exchange under test is wrong.
pub(crate) fn wrong(what: &str) -> impl Fn(batzen_crypto::CryptoError) -> BenchError {
    move |error| BenchError::WrongAnswer(format!("{what}: {error}"))
}

/// Parses a JSON answer of the exchange.
///
/// # Errors
/// [`BenchError::WrongAnswer`].
pub(crate) fn read<T: serde::de::DeserializeOwned>(what: &str, body: &[u8]) -> Result<T> {
    serde_json::from_slice(body).map_err(|error| BenchError::WrongAnswer(format!("{what}: {error}")))
}

/// Reserves with their keys.
#[derive(Clone)]
pub(crate) struct Reserves {
    signers: Arc<Vec<ExpandedSigner>>,
    keys: Arc<Vec<EddsaPublicKey>>,
}

impl Reserves {
    /// The balance of each reserve in units: more than any run takes.
    const UNITS: u64 = 1_000_000_000;

    /// Opens `count` reserves with more money than a run needs.
    pub(crate) fn open(count: usize, seed: &Seed, world: &mut World, progress: Progress) -> Result<Self> {
        Self::open_with(count, Self::UNITS, seed, world, progress)
    }

    /// Opens `count` reserves with the given balance each.
    pub(crate) fn open_with(
        count: usize,
        units: u64,
        seed: &Seed,
        world: &mut World,
        progress: Progress,
    ) -> Result<Self> {
        let signers: Vec<ExpandedSigner> = (0..count.max(1) as u64)
            .map(|index| ExpandedSigner::new(&EddsaPrivateKey::from_bytes(seed.bytes("reserve", index))))
            .collect();
        let keys: Vec<EddsaPublicKey> = signers.iter().map(ExpandedSigner::public_key).collect();
        world.fund(&keys, world::units(units), &progress)?;
        Ok(Self { signers: Arc::new(signers), keys: Arc::new(keys) })
    }

    /// The public key of reserve `index`, modulo their number.
    pub(crate) fn key(&self, index: usize) -> &EddsaPublicKey {
        &self.keys[index % self.keys.len()]
    }

    /// The signed request for a planchet.
    pub(crate) fn request(&self, index: usize, denom: &Denom, planchet: &Planchet) -> WithdrawRequest {
        let message = WalletReserveWithdraw {
            amount_with_fee: denom.amount,
            h_denom_pub: denom.h_denom_pub,
            h_coin_envelope: planchet.blinded.hash(&denom.h_denom_pub),
        };
        WithdrawRequest {
            reserve_sig: message.sign_with(&self.signers[index % self.signers.len()]),
            denom_pub_hash: denom.h_denom_pub,
            coin_ev: planchet.blinded.clone(),
        }
    }

    /// The HTTP request for the status of a reserve, with its recent history.
    pub(crate) fn status(&self, index: usize) -> Vec<u8> {
        let request_timestamp = crate::bench::scenarios::world::now();
        let message = WalletReserveStatus { request_timestamp };
        let reserve_sig = message.sign_with(&self.signers[index % self.signers.len()]);
        let body = ReserveRequest { request_timestamp, reserve_sig };
        wire::post(&format!("/reserves/{}/status", self.key(index)), &body)
    }

    /// The HTTP request that withdraws these coins from one reserve; several coins make a batch.
    pub(crate) fn withdraw(&self, index: usize, coins: &[(&Denom, &Planchet)]) -> Vec<u8> {
        match coins {
            [(denom, planchet)] => {
                let path = format!("/reserves/{}/withdraw", self.key(index));
                wire::post(&path, &self.request(index, denom, planchet))
            }
            _ => self.batch_withdraw(index, coins.iter().copied()),
        }
    }

    fn batch_withdraw<'a>(
        &self,
        index: usize,
        coins: impl Iterator<Item = (&'a Denom, &'a Planchet)>,
    ) -> Vec<u8> {
        let planchets = coins.map(|(denom, planchet)| self.request(index, denom, planchet)).collect();
        let path = format!("/reserves/{}/batch-withdraw", self.key(index));
        wire::post(&path, &BatchWithdrawRequest { planchets })
    }
}

/// A coin that is not signed yet.
#[derive(Clone, Debug)]
pub(crate) struct Planchet {
    pub(crate) coin_priv: EddsaPrivateKey,
    pub(crate) coin_pub: EddsaPublicKey,
    /// The blinded planchet to send.
    pub(crate) blinded: BlindedPlanchet,
    blinding: BlindingSecret,
    unblind: Option<UnblindState>,
}

/// The secret from which Clause-Schnorr coin number `index` derives.
fn master_secret(seed: &Seed, index: u32) -> PlanchetMasterSecret {
    PlanchetMasterSecret::from_bytes(kdf::kdf_array(&index.to_be_bytes(), seed.as_bytes(), &[b"cs-coin"]))
}

/// The nonce of Clause-Schnorr coin number `index`.
pub(crate) fn nonce(seed: &Seed, index: u32) -> CsNonce {
    master_secret(seed, index).cs_nonce()
}

/// The HTTP request for the R values of coin number `index`.
pub(crate) fn csr_request(seed: &Seed, index: u32, denom: &Denom) -> Vec<u8> {
    let body = CsrWithdrawRequest { nonce: nonce(seed, index), denom_pub_hash: denom.h_denom_pub };
    wire::post("/csr-withdraw", &body)
}

/// The R values in the answer to [`csr_request`].
///
/// # Errors
/// [`BenchError::WrongAnswer`].
pub(crate) fn csr_answer(body: &[u8]) -> Result<ExchangeWithdrawValues> {
    Ok(read::<WithdrawValues>("csr-withdraw", body)?.ewv)
}

/// The R values of these coins, if the cipher of the first denomination has them.
pub(crate) fn r_values(
    seed: &Seed,
    indices: Vec<u32>,
    world: &World,
    bar: &Bar,
) -> Result<Vec<ExchangeWithdrawValues>> {
    let denom = &world.denoms[0];
    if !matches!(denom.key.key, DenomKey::Cs(_)) {
        return Ok(vec![ExchangeWithdrawValues::Rsa; indices.len()]);
    }
    let plan = world.set_up_plan(world.exchange_address);
    let requests = indices.into_iter().map(|index| csr_request(seed, index, denom)).collect();
    let answers = world::send_all(&plan, requests, "ask for R values", bar, world.interrupted())?;
    answers.iter().map(|answer| csr_answer(answer)).collect()
}

impl Planchet {
    /// Coin number `index` of a seed.
    pub(crate) fn new(
        seed: &Seed,
        index: u32,
        denom: &Denom,
        values: &ExchangeWithdrawValues,
    ) -> Result<Self> {
        match values {
            ExchangeWithdrawValues::Rsa => {
                let secrets = CoinSecrets::from_withdrawal_seed(seed.as_bytes(), index);
                Self::of(secrets, denom, values, None)
            }
            ExchangeWithdrawValues::Cs { .. } => {
                let master = master_secret(seed, index);
                let secrets = CoinSecrets::from_master(&master, values);
                Self::of(secrets, denom, values, Some(&master.cs_nonce()))
            }
        }
    }

    fn of(
        secrets: CoinSecrets,
        denom: &Denom,
        values: &ExchangeWithdrawValues,
        nonce: Option<&CsNonce>,
    ) -> Result<Self> {
        let coin_pub = secrets.coin_pub();
        let (blinded, state) =
            denom::prepare_planchet(&denom.key, values, nonce, &coin_pub, &secrets.blinding, None)
                .map_err(wrong("a key of the exchange"))?;
        // RSA does not need it; omitting it saves memory.
        let unblind = nonce.map(|_| state);
        Ok(Self { coin_priv: secrets.coin_priv, coin_pub, blinded, blinding: secrets.blinding, unblind })
    }

    /// Unblinds the signature. The result is not verified: the recipient of the coin does that.
    ///
    /// # Errors
    /// When the signature is of another cipher or size.
    pub(crate) fn finish(
        self,
        denom_index: usize,
        denom: &Denom,
        blind: &BlindedDenomSignature,
    ) -> Result<Coin> {
        let signature = match (&denom.key.key, blind, &self.unblind) {
            (DenomKey::Rsa(key), BlindedDenomSignature::Rsa(blind), _) => DenomSignature::Rsa(
                rsa::unblind(key, blind, &self.blinding).map_err(wrong("a blind signature"))?,
            ),
            (_, _, Some(state)) => state.unblind(blind).map_err(wrong("a blind signature"))?,
            _ => return Err(BenchError::WrongAnswer("a blind signature of another cipher".into())),
        };
        Ok(Coin { coin_priv: self.coin_priv, coin_pub: self.coin_pub, denom: denom_index, signature })
    }

    /// Returns whether this is the exchange's signature for the planchet.
    pub(crate) fn accepts(self, denom: &Denom, blind: &BlindedDenomSignature) -> bool {
        let h_coin_pub = denom::h_coin_pub(&self.coin_pub, None);
        self.finish(0, denom, blind).is_ok_and(|coin| denom.key.verify(&h_coin_pub, &coin.signature))
    }
}

/// A coin that can be spent.
#[derive(Clone, Debug)]
pub(crate) struct Coin {
    pub coin_priv: EddsaPrivateKey,
    pub coin_pub: EddsaPublicKey,
    /// Its denomination: an index into [`World::denoms`].
    pub denom: usize,
    /// The exchange's signature.
    pub signature: DenomSignature,
}

/// Makes coins for the set-up.
pub(crate) struct Mint<'a> {
    /// The bank and the exchange.
    pub(crate) world: &'a World,
    /// The threads that prepare the load.
    pub(crate) prep_pool: &'a PrepPool,
    /// The reserves that pay for the coins.
    pub(crate) reserves: &'a Reserves,
    /// The seed of the coins.
    pub(crate) seed: &'a Seed,
}

impl Mint<'_> {
    /// Withdraws coins of the first denomination, with numbers from `first` on.
    pub(crate) fn coins(&self, first: u32, count: usize, bar: &Bar) -> Result<Vec<Coin>> {
        let Self { world, prep_pool, reserves, seed } = self;
        let denom = &world.denoms[0];
        let plan = world.set_up_plan(world.exchange_address);
        let hidden = Progress::new(false).waiting("");
        let mut coins = Vec::with_capacity(count);
        let mut done = 0;
        while done < count {
            let part = SET_UP_CHUNK.min(count - done);
            let index =
                |position: usize| first + u32::try_from(done + position).expect("fewer than 2^32 coins");
            let values = r_values(seed, (0..part).map(index).collect(), world, &hidden)?;
            let planchets = prep_pool
                .make(part, |position| Planchet::new(seed, index(position), denom, &values[position]))?;
            let starts: Vec<usize> = (0..part).step_by(SET_UP_BATCH).collect();
            let requests = prep_pool.make(starts.len(), |number| {
                let start = starts[number];
                let batch = &planchets[start..part.min(start + SET_UP_BATCH)];
                Ok(reserves.batch_withdraw(start, batch.iter().map(|planchet| (denom, planchet))))
            })?;
            let answers = world::send_all(&plan, requests, "withdraw coins", &hidden, world.interrupted())?;
            let mut signatures = Vec::with_capacity(part);
            for answer in &answers {
                signatures.extend(read::<BlindSignatures>("batch-withdraw", answer)?.ev_sigs);
            }
            if signatures.len() != part {
                return Err(BenchError::WrongAnswer(format!(
                    "{} signatures for {part} coins",
                    signatures.len()
                )));
            }
            coins.extend(prep_pool.make(part, |position| {
                let planchet = planchets[position].clone();
                planchet.finish(0, denom, &signatures[position].ev_sig)
            })?);
            done += part;
            bar.set(bar.position() + part as u64);
        }
        Ok(coins)
    }
}

impl From<FreshCoin> for Planchet {
    fn from(coin: FreshCoin) -> Self {
        // RSA does not need it; omitting it saves memory.
        let unblind = matches!(coin.planchet, BlindedPlanchet::Cs { .. }).then_some(coin.unblind);
        Self {
            coin_priv: coin.secrets.coin_priv,
            coin_pub: coin.coin_pub,
            blinded: coin.planchet,
            blinding: coin.secrets.blinding,
            unblind,
        }
    }
}
