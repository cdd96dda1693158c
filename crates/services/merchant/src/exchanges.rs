//! Cache of the exchanges' denominations, signing keys and wire fees, each signed by the exchange's master key. Kept in
//! memory until the next start, and fetched again when it is old or when a coin of an unknown denomination comes.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration as StdDuration;

use batzen_crypto::{Cipher, DenomPublicKey, EddsaPublicKey, HashCode};
use batzen_http::client::{Client, ClientError, ClientOptions, Reply};
use batzen_protocol::api::exchange::{
    AuditorKeys, Denomination, DenominationGroup, KeysResponse, SignKey, WireFee, WireResponse,
};
use batzen_protocol::denominations::DenominationTerms;
use batzen_protocol::signatures::SignedMessage;
use batzen_protocol::{Amount, Currency, Duration, Money, Timestamp};
use tokio::time::Instant;

use crate::config::TrustedExchange;

/// Time that an exchange may take for one answer. The wallet's own limit is 15 s and 3 s a coin.
const EXCHANGE_TIMEOUT: StdDuration = StdDuration::from_secs(10);
/// After this time, what is known is fetched again.
const FRESH: StdDuration = StdDuration::from_secs(3_600);
/// After this time, what is known is fetched again if it does not suffice.
const FORCED_PAUSE: StdDuration = StdDuration::from_secs(1);
/// The maximum number of exchanges of which something is kept: wallets name any URL.
const EXCHANGES_MAX: usize = 256;
/// The maximum number of an exchange's auditors that see confirmations.
const AUDITORS_MAX: usize = 16;
/// The largest `/keys` or `/wire` of an exchange, in bytes.
const KEYS_BYTES_MAX: usize = 16 << 20;
/// The largest answer of an exchange about a coin, in bytes. The history of a coin is the longest of them.
const REPLY_BYTES_MAX: usize = 1 << 20;

#[derive(Clone, Debug)]
pub(crate) struct Denom {
    /// The cost of a coin to a reserve: its value and the withdrawal fee.
    pub cost: Money,
    /// The auditors that approve of it.
    pub auditors: Vec<EddsaPublicKey>,
    /// Whether its signatures are RSA.
    pub is_rsa: bool,
    /// The ages that its coins distinguish; 0 for none.
    pub age_mask: u32,
    /// The cost of a deposit.
    pub deposit_fee: Money,
    /// The cost of a refund.
    pub refund_fee: Money,
    /// Coins can be deposited before this time.
    pub expire_deposit: Timestamp,
}

/// The cached keys and fees of an exchange.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) master_pub: EddsaPublicKey,
    pub(crate) denoms: HashMap<HashCode, Denom>,
    /// Its bank accounts, as it names them.
    pub(crate) accounts: Vec<String>,
    /// When it closes reserves, after they were filled.
    pub(crate) closing_delay: Duration,
    /// Base URLs of its auditors, which want to see some of its confirmations.
    pub(crate) auditors: Vec<String>,
    /// Cleared when it turns out not to know deposits of several coins.
    pub(crate) has_batch_deposit: AtomicBool,
    signkeys: Vec<SignKey>,
    wire_fees: HashMap<String, Vec<WireFee>>,
    fetched: Instant,
}

impl Exchange {
    /// Returns whether this key could confirm a deposit at this time.
    #[must_use]
    pub(crate) fn signs_with(&self, key: &EddsaPublicKey, time: Timestamp) -> bool {
        self.signkeys.iter().any(|signkey| signkey.key == *key && time < signkey.stamp_end)
    }

    /// A signing key, with the master key's signature.
    #[must_use]
    pub(crate) fn signkey(&self, key: &EddsaPublicKey) -> Option<&SignKey> {
        self.signkeys.iter().find(|signkey| signkey.key == *key)
    }

    /// The wire fee of a method; none if the exchange has not published it.
    #[must_use]
    pub(crate) fn wire_fee(&self, method: &str, now: Timestamp) -> Option<&WireFee> {
        let fees = self.wire_fees.get(method)?;
        fees.iter().find(|fee| fee.start_date <= now && now < fee.end_date)
    }
}

/// Why nothing is known of an exchange.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    /// It did not answer in time.
    #[error("{0} did not answer in time")]
    Timeout(String),
    /// It cannot be reached.
    #[error("{0}")]
    Unreachable(String),
    /// It answered with this status.
    #[error("{url} answered {status}")]
    Status {
        /// The URL that was asked for.
        url: String,
        /// The status.
        status: u16,
    },
    /// Its answer cannot be read, or is not signed.
    #[error("{0}")]
    Malformed(String),
}

impl From<ClientError> for ExchangeError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Timeout { .. } => Self::Timeout(error.to_string()),
            error => Self::Unreachable(error.to_string()),
        }
    }
}

pub(crate) struct Exchanges {
    /// For requests about coins.
    pub(crate) client: Client,
    /// For `/keys`, `/wire` and `/transfers`, which are longer.
    pub(crate) keys_client: Client,
    currency: Currency,
    trusted: Vec<TrustedExchange>,
    auditors: Vec<EddsaPublicKey>,
    known: Mutex<HashMap<String, Arc<Exchange>>>,
}

impl Exchanges {
    /// Knows nothing yet.
    ///
    /// # Errors
    /// When the HTTP client cannot be made.
    pub(crate) fn new(
        currency: Currency,
        trusted: Vec<TrustedExchange>,
        auditors: Vec<EddsaPublicKey>,
    ) -> Result<Self, ClientError> {
        let client = |max_reply_bytes, accept_deflate| {
            let options = ClientOptions {
                timeout: EXCHANGE_TIMEOUT,
                max_reply_bytes,
                accept_deflate,
                ..ClientOptions::default()
            };
            Client::new(&options)
        };
        // Answers about coins are keys and signatures, which deflating does not shrink much.
        let (client, keys_client) = (client(REPLY_BYTES_MAX, false)?, client(KEYS_BYTES_MAX, true)?);
        Ok(Self { client, keys_client, currency, trusted, auditors, known: Mutex::default() })
    }

    /// The exchanges that contracts name.
    #[must_use]
    pub(crate) fn trusted(&self) -> &[TrustedExchange] {
        &self.trusted
    }

    /// Returns whether all coins of the exchange with this master key are accepted, under whatever URL.
    #[must_use]
    pub(crate) fn accepts(&self, master_pub: &EddsaPublicKey) -> bool {
        self.trusted.iter().any(|trusted| trusted.master_pub == *master_pub)
    }

    /// Returns whether coins of a denomination are accepted: the exchange is, or an auditor approves of the
    /// denomination.
    #[must_use]
    pub(crate) fn accepts_denom(&self, exchange: &Exchange, denom: &Denom) -> bool {
        self.accepts(&exchange.master_pub) || denom.auditors.iter().any(|key| self.auditors.contains(key))
    }

    /// Returns whether coins of an exchange may be accepted: the exchange is, or an auditor approves of a
    /// denomination.
    #[must_use]
    pub(crate) fn accepts_some(&self, exchange: &Exchange) -> bool {
        self.accepts(&exchange.master_pub)
            || exchange.denoms.values().any(|denom| self.accepts_denom(exchange, denom))
    }

    /// Returns the cached keys and fees of an exchange. `suffices` says whether they are enough; if not, they are
    /// fetched again, though not at every request.
    ///
    /// # Errors
    /// [`ExchangeError`] if nothing is known and it cannot be fetched.
    pub(crate) async fn get(
        &self,
        url: &str,
        suffices: impl Fn(&Exchange) -> bool,
    ) -> Result<Arc<Exchange>, ExchangeError> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(url).cloned();
        if let Some(known) = known {
            let age = known.fetched.elapsed();
            if age < if suffices(&known) { FRESH } else { FORCED_PAUSE } {
                return Ok(known);
            }
        }
        let fetched = Arc::new(self.fetch(url).await?);
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= EXCHANGES_MAX && !all.contains_key(url) {
            // Whatever is thrown away is fetched again when somebody needs it.
            all.clear();
        }
        all.insert(url.to_owned(), Arc::clone(&fetched));
        Ok(fetched)
    }

    async fn fetch(&self, url: &str) -> Result<Exchange, ExchangeError> {
        let keys: KeysResponse = read(&self.keys_client.get_json(format!("{url}keys")).await?)?;
        let wire: WireResponse = read(&self.keys_client.get_json(format!("{url}wire")).await?)?;
        let (currency, auditors) = (self.currency, self.auditors.clone());
        // Thousands of signatures take a while.
        let verified = tokio::task::spawn_blocking(move || verify(keys, wire, currency, &auditors)).await;
        verified.expect("verifying does not panic")
    }
}

fn read<T: serde::de::DeserializeOwned>(reply: &Reply) -> Result<T, ExchangeError> {
    if reply.status != 200 {
        return Err(ExchangeError::Status { url: reply.url.clone(), status: reply.status });
    }
    reply.json().map_err(|error| ExchangeError::Malformed(error.to_string()))
}

/// Checks what an exchange says against its master key.
fn verify(
    keys: KeysResponse,
    wire: WireResponse,
    currency: Currency,
    auditors: &[EddsaPublicKey],
) -> Result<Exchange, ExchangeError> {
    let malformed = |what: &str| ExchangeError::Malformed(what.to_owned());
    let master_pub = keys.master_public_key;
    let mut denoms = HashMap::new();
    let mut add = |key: &DenomPublicKey, terms: &DenominationTerms, signature| {
        let h_denom_pub = key.h_denom_pub();
        if !terms.validity(master_pub, h_denom_pub).verify(&master_pub, signature) {
            return Err(malformed("a denomination is not signed by the exchange's master key"));
        }
        let money = |amount: &Amount| {
            amount.money_in(currency).map_err(|_| malformed("the exchange has another currency"))
        };
        let approves = |auditor: &&AuditorKeys| {
            let of_denom =
                auditor.denomination_keys.iter().find(|approval| approval.denom_pub_h == h_denom_pub);
            let message = || terms.auditor_approval(&auditor.auditor_url, master_pub, h_denom_pub);
            auditors.contains(&auditor.auditor_pub)
                && of_denom.is_some_and(|found| message().verify(&auditor.auditor_pub, &found.auditor_sig))
        };
        let cost = terms.withdraw_cost().map_err(|_| malformed("a denomination is worth too much"))?;
        let denom = Denom {
            cost: money(&cost)?,
            auditors: keys.auditors.iter().filter(approves).map(|auditor| auditor.auditor_pub).collect(),
            is_rsa: key.cipher() == Cipher::Rsa,
            age_mask: key.age_mask,
            deposit_fee: money(&terms.fee_deposit)?,
            refund_fee: money(&terms.fee_refund)?,
            expire_deposit: terms.stamp_expire_deposit,
        };
        denoms.insert(h_denom_pub, denom);
        Ok(())
    };
    for denom in &keys.denoms {
        add(&denom.denom_pub, &Denomination::terms(denom), &denom.master_sig)?;
    }
    for group in &keys.denominations {
        for member in &group.denoms {
            let key = group.key(member).ok_or_else(|| malformed("a denomination's key is malformed"))?;
            add(&key, &DenominationGroup::terms(group, member), &member.master_sig)?;
        }
    }
    if !keys.signkeys.iter().all(|signkey| signkey.validity().verify(&master_pub, &signkey.master_sig)) {
        return Err(malformed("a signing key is not signed by the exchange's master key"));
    }
    for (method, fees) in &wire.fees {
        if !fees.iter().all(|fee| fee.message(method).verify(&master_pub, &fee.sig)) {
            return Err(malformed("wire fees are not signed by the exchange's master key"));
        }
    }
    if !wire.accounts.iter().all(|account| account.message().verify(&master_pub, &account.master_sig)) {
        return Err(malformed("an account is not signed by the exchange's master key"));
    }
    Ok(Exchange {
        master_pub,
        denoms,
        accounts: wire.accounts.into_iter().map(|account| account.payto_uri).collect(),
        closing_delay: keys.reserve_closing_delay,
        auditors: auditor_urls(keys.auditors),
        has_batch_deposit: AtomicBool::new(true),
        signkeys: keys.signkeys,
        wire_fees: wire.fees.into_iter().collect(),
        fetched: Instant::now(),
    })
}

/// The base URLs of an exchange's auditors, each once.
fn auditor_urls(auditors: Vec<AuditorKeys>) -> Vec<String> {
    let mut urls: Vec<String> = auditors.into_iter().map(|auditor| auditor.auditor_url).collect();
    urls.retain(|url| is_base_url(url));
    urls.sort();
    urls.dedup();
    urls.truncate(AUDITORS_MAX);
    urls
}

/// Returns whether a wallet may name this base URL: what is asked of the exchange is appended to it, so it must not end
/// in a query or in the middle of a name.
#[must_use]
pub(crate) fn is_base_url(url: &str) -> bool {
    (url.starts_with("http://") || url.starts_with("https://"))
        && url.ends_with('/')
        && !url.contains(['?', '#'])
}

/// The error of a request whose answer is not known.
#[must_use]
pub(crate) fn is_transient(status: u16) -> bool {
    status >= 500 || status == 429
}
