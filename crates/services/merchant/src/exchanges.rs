//! The exchanges: who is one, and what it offers, signed by its master key.
//!
//! An exchange is its master key. One of the configuration is asked at its configured URL only, whatever URL a wallet names:
//! its own list leaves out the keys that it has revoked, and nobody in between can answer for it. A wallet's coins identify
//! the exchange, since no two have the same denomination.
//!
//! A URL that a wallet names is asked only if an auditor's approval may stand behind it, under strict limits, at addresses
//! of the public Internet. Nothing of what it answers is kept, nor told to the customer, unless the auditor does approve.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration as StdDuration;

use batzen_crypto::{Cipher, DenomPublicKey, EddsaPublicKey, EddsaSignature, HashCode};
use batzen_engine::{Timers, run_blocking};
use batzen_http::Networks;
use batzen_http::client::{Call, Client, ClientError, ClientOptions, Destinations, Reply};
use batzen_protocol::api::auditor::{AuditedExchange, AuditedExchanges};
use batzen_protocol::api::exchange::{
    AuditorKeys, Denomination, DenominationGroup, KeysResponse, SignKey, WireFee, WireResponse,
};
use batzen_protocol::api::merchant::ContractAuditor;
use batzen_protocol::denominations::DenominationTerms;
use batzen_protocol::signatures::SignedMessage;
use batzen_protocol::{Amount, Currency, Duration, Money, Timestamp};
use tokio::sync::{Mutex as Turn, Semaphore};
use tokio::time::Instant;

use crate::config::TrustedExchange;
use crate::surroundings::Surroundings;

/// Time that an exchange may take for one answer. The wallet's own limit is 15 s and 3 s a coin.
const EXCHANGE_TIMEOUT: StdDuration = StdDuration::from_secs(10);
/// After this time, what is known is fetched again.
const FRESH: StdDuration = StdDuration::from_secs(3_600);
/// After this time, what is known is fetched again if it does not suffice.
const FORCED_PAUSE: StdDuration = StdDuration::from_secs(1);
/// The maximum number of an exchange's auditors that see confirmations.
const AUDITORS_MAX: usize = 16;
/// The largest `/keys` or `/wire` of an exchange, in bytes.
const KEYS_BYTES_MAX: usize = 16 << 20;
/// The largest answer of an exchange about a coin, in bytes. The history of a coin is the longest of them.
const REPLY_BYTES_MAX: usize = 1 << 20;
/// The longest URL of an exchange, in bytes.
const URL_BYTES_MAX: usize = 1_024;

/// Time in which a stranger must have answered, `/keys` and `/wire` together.
const STRANGER_TIMEOUT: StdDuration = StdDuration::from_secs(5);
/// Time for which a request waits for its turn to ask a stranger.
const STRANGER_PATIENCE: StdDuration = StdDuration::from_secs(5);
/// The largest `/keys` or `/wire` of a stranger, in bytes, inflated.
const STRANGER_KEYS_BYTES_MAX: usize = 4 << 20;
/// Strangers that are asked at the same time.
const STRANGERS_AT_ONCE: usize = 4;
/// Turns at asking strangers; each host always has the same one.
const STRANGER_TURNS: usize = 64;
/// The maximum number of URLs in a request that the configuration does not name.
const STRANGERS_PER_REQUEST_MAX: usize = 3;
/// The maximum number of URLs that are remembered because an auditor approves of the exchange there.
const APPROVED_MAX: usize = 16;
/// Timeout of an auditor's list of exchanges.
const AUDITOR_TIMEOUT: StdDuration = StdDuration::from_secs(3);
/// After this time, auditors that did not say it are asked again.
const AUDITOR_PAUSE: StdDuration = StdDuration::from_secs(60);

#[derive(Clone, Debug)]
pub(crate) struct Denom {
    /// The cost of a coin to a reserve: its value and the withdrawal fee.
    pub cost: Money,
    /// Set if an auditor approves of it.
    pub is_approved: bool,
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

/// The origin of the URL at which an exchange is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// The configuration names it, with this URL.
    Configured,
    /// An auditor that the configuration names lists it, with this URL.
    Listed,
    /// A wallet or a shop named the URL, and an auditor approves of denominations there.
    Named,
}

/// The way to an exchange.
#[derive(Clone, Debug)]
struct Way {
    url: String,
    standing: Standing,
    clients: Clients,
}

/// The cached keys and fees of an exchange, and the way to it.
#[derive(Debug)]
pub(crate) struct Exchange {
    way: Way,
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
    /// The base URL at which it is asked.
    #[must_use]
    pub(crate) fn url(&self) -> &str {
        &self.way.url
    }

    /// Starts a request about a coin, a reserve or an account.
    #[must_use]
    pub(crate) fn get(&self, path: &str) -> Call<'_> {
        self.way.clients.coins.get(format!("{}{path}", self.way.url))
    }

    /// Starts a request that changes something.
    #[must_use]
    pub(crate) fn post(&self, path: &str) -> Call<'_> {
        self.way.clients.coins.post(format!("{}{path}", self.way.url))
    }

    /// Starts a request for a long list.
    #[must_use]
    pub(crate) fn get_list(&self, path: &str) -> Call<'_> {
        self.way.clients.lists.get(format!("{}{path}", self.way.url))
    }

    /// Returns whether coins of a denomination are accepted: the exchange is, or an auditor approves of the denomination.
    #[must_use]
    pub(crate) fn is_accepted(&self, denom: &Denom) -> bool {
        self.way.standing == Standing::Configured || denom.is_approved
    }

    /// Returns whether the URL is the exchange's own beyond doubt. Anybody can pass on what an approved exchange answers, and
    /// put in what is not signed.
    #[must_use]
    pub(crate) fn is_at_home(&self) -> bool {
        self.way.standing != Standing::Named
    }

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

    /// Returns whether it is recent enough, which depends on whether it suffices for a request.
    fn serves(&self, suffices: impl Fn(&Self) -> bool, now: Instant) -> bool {
        now.saturating_duration_since(self.fetched) < if suffices(self) { FRESH } else { FORCED_PAUSE }
    }
}

/// Why nothing is known of an exchange.
#[derive(Clone, Debug, thiserror::Error)]
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
    /// Neither the configuration nor an auditor names what is at a URL, whatever that is: whoever named the URL learns
    /// nothing about it.
    #[error("the shop accepts no exchange at this URL")]
    NotAccepted,
}

impl From<ClientError> for ExchangeError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Timeout { .. } => Self::Timeout(error.to_string()),
            error => Self::Unreachable(error.to_string()),
        }
    }
}

/// The clients for exchanges of a kind.
#[derive(Clone, Debug)]
struct Clients {
    /// For requests about coins.
    coins: Client,
    /// For `/keys`, `/wire` and `/transfers`, which are longer.
    lists: Client,
}

impl Clients {
    fn new(
        surroundings: &Surroundings,
        destinations: &Destinations,
        timeout: StdDuration,
        list_bytes_max: usize,
    ) -> Result<Self, ClientError> {
        let client = |timeout, max_reply_bytes, accept_deflate| {
            let destinations = destinations.clone();
            let options = ClientOptions {
                timeout,
                max_reply_bytes,
                accept_deflate,
                destinations,
                ..ClientOptions::default()
            };
            surroundings.client(&options)
        };
        // Answers about coins are keys and signatures, which deflating does not shrink much.
        Ok(Self {
            coins: client(EXCHANGE_TIMEOUT, REPLY_BYTES_MAX, false)?,
            lists: client(timeout, list_bytes_max, true)?,
        })
    }
}

/// An exchange that is asked at one URL, whatever URL others name.
struct Contact {
    exchange: TrustedExchange,
    standing: Standing,
    known: Mutex<Option<Arc<Exchange>>>,
    /// Held by the request that fetches; the latest failure.
    turn: Turn<Option<(Instant, ExchangeError)>>,
}

impl Contact {
    fn new(exchange: TrustedExchange, standing: Standing) -> Arc<Self> {
        Arc::new(Self { exchange, standing, known: Mutex::default(), turn: Turn::default() })
    }

    fn known(&self) -> Option<Arc<Exchange>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The exchanges that auditors list. What they said once is not forgotten.
#[derive(Default)]
struct Listed {
    contacts: HashMap<EddsaPublicKey, Arc<Contact>>,
    /// The time at which to ask them again.
    again: Option<Instant>,
}

pub(crate) struct Exchanges {
    /// For URLs of the configuration.
    near: Clients,
    /// For URLs that others name.
    far: Clients,
    /// For the auditors of the configuration.
    pub(crate) auditor_client: Client,
    currency: Currency,
    trusted: Vec<Arc<Contact>>,
    auditors: Vec<ContractAuditor>,
    listed: Turn<Listed>,
    /// Strangers of which an auditor approves, by URL.
    approved: Mutex<HashMap<String, Arc<Exchange>>>,
    turns: [Turn<()>; STRANGER_TURNS],
    hosts: RandomState,
    strangers: Semaphore,
    timers: Arc<dyn Timers>,
}

impl Exchanges {
    /// Knows nothing yet. Strangers are asked at addresses of the public Internet and in these networks.
    ///
    /// # Errors
    /// When the HTTP client cannot be made.
    pub(crate) fn new(
        currency: Currency,
        trusted: &[TrustedExchange],
        auditors: Vec<ContractAuditor>,
        networks: Networks,
        surroundings: &Surroundings,
    ) -> Result<Self, ClientError> {
        let clients = |destinations: &Destinations, timeout, list_bytes_max| {
            Clients::new(surroundings, destinations, timeout, list_bytes_max)
        };
        let near = clients(&Destinations::All, EXCHANGE_TIMEOUT, KEYS_BYTES_MAX)?;
        Ok(Self {
            auditor_client: near.coins.clone(),
            near,
            far: clients(&Destinations::Public(networks), STRANGER_TIMEOUT, STRANGER_KEYS_BYTES_MAX)?,
            currency,
            trusted: trusted.iter().map(|one| Contact::new(one.clone(), Standing::Configured)).collect(),
            auditors,
            listed: Turn::default(),
            approved: Mutex::default(),
            turns: std::array::from_fn(|_| Turn::default()),
            hosts: RandomState::new(),
            strangers: Semaphore::new(STRANGERS_AT_ONCE),
            timers: Arc::clone(&surroundings.timers),
        })
    }

    /// The exchanges that contracts name.
    pub(crate) fn trusted(&self) -> impl Iterator<Item = &TrustedExchange> {
        self.trusted.iter().map(|contact| &contact.exchange)
    }

    /// Returns whether a request may name these URLs: each that the configuration does not name may be asked.
    #[must_use]
    pub(crate) fn are_few<'a>(&self, urls: impl Iterator<Item = &'a str>) -> bool {
        let strangers: std::collections::BTreeSet<&str> =
            urls.filter(|url| self.configured(url).is_none()).collect();
        strangers.len() <= STRANGERS_PER_REQUEST_MAX
    }

    /// The URL of an exchange as the configuration writes it, if it names the exchange.
    #[must_use]
    pub(crate) fn spelled<'a>(&'a self, url: &'a str) -> &'a str {
        self.configured(url).map_or(url, |contact| &contact.exchange.url)
    }

    fn configured(&self, url: &str) -> Option<&Arc<Contact>> {
        let url = one_spelling(url);
        self.trusted.iter().find(|contact| one_spelling(&contact.exchange.url) == url)
    }

    /// The exchange that has issued coins of these denominations, for which a wallet names this URL.
    ///
    /// # Errors
    /// [`ExchangeError`] if there is none that may be accepted, or it is not known whether there is one.
    pub(crate) async fn of_coins(
        &self,
        url: &str,
        denoms: &[HashCode],
    ) -> Result<Arc<Exchange>, ExchangeError> {
        let knows_all = |exchange: &Exchange| denoms.iter().all(|denom| exchange.denoms.contains_key(denom));
        let issued = |exchange: &Exchange| denoms.iter().any(|denom| exchange.denoms.contains_key(denom));
        if let Some(contact) = self.configured(url) {
            return self.at(contact, knows_all).await;
        }
        let known = self.trusted.iter().find(|contact| contact.known().is_some_and(|known| issued(&known)));
        if let Some(contact) = known {
            return self.at(contact, knows_all).await;
        }
        let mut failure = ExchangeError::NotAccepted;
        let all = self.trusted.iter().map(|contact| self.at(contact, knows_all));
        for found in futures_util::future::join_all(all).await {
            match found {
                Ok(exchange) if issued(&exchange) => return Ok(exchange),
                Ok(_) => {}
                Err(error) => failure = error,
            }
        }
        if self.auditors.is_empty() {
            return Err(failure);
        }
        let is_it = |contact: &Contact| contact.known().is_some_and(|known| issued(&known));
        match self.listed_where(is_it).await {
            Some(contact) => self.at(&contact, knows_all).await,
            None => self.stranger(url, knows_all).await.map_err(|_| failure),
        }
    }

    /// The exchange that coins, transfers or reserves in the store have under a URL, which may be one that a wallet named.
    /// If what is known of it does not satisfy `suffices`, it is fetched again, though not at every request.
    ///
    /// # Errors
    /// [`ExchangeError`] if nothing is known and it cannot be fetched.
    pub(crate) async fn get(
        &self,
        url: &str,
        suffices: impl Fn(&Exchange) -> bool,
    ) -> Result<Arc<Exchange>, ExchangeError> {
        match (&*self.trusted, self.auditors.is_empty()) {
            // Whatever a wallet called it: no other was ever accepted.
            ([only], true) => self.at(only, suffices).await,
            _ => self.named(url, suffices).await,
        }
    }

    /// The exchange at a URL that a shop chooses.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub(crate) async fn named(
        &self,
        url: &str,
        suffices: impl Fn(&Exchange) -> bool,
    ) -> Result<Arc<Exchange>, ExchangeError> {
        if let Some(contact) = self.configured(url) {
            return self.at(contact, suffices).await;
        }
        match self.listed_where(|contact| contact.exchange.url == url).await {
            Some(contact) => self.at(&contact, suffices).await,
            None => self.stranger(url, suffices).await,
        }
    }

    /// The exchange at its own URL.
    async fn at(
        &self,
        contact: &Contact,
        suffices: impl Fn(&Exchange) -> bool,
    ) -> Result<Arc<Exchange>, ExchangeError> {
        let known = || contact.known().filter(|known| known.serves(&suffices, self.timers.now()));
        if let Some(known) = known() {
            return Ok(known);
        }
        let began = self.timers.now();
        let mut turn = contact.turn.lock().await;
        // Another request may have fetched it meanwhile.
        match (known(), &*turn) {
            (Some(known), _) => return Ok(known),
            (None, Some((time, error))) if *time >= began => return Err(error.clone()),
            _ => {}
        }
        let TrustedExchange { url, master_pub } = &contact.exchange;
        let clients = if contact.standing == Standing::Configured { &self.near } else { &self.far };
        let fetched = match self.fetch(clients, url, contact.standing).await {
            Ok(fetched) if fetched.master_pub != *master_pub => {
                Err(ExchangeError::Malformed(format!("{url} has another master key")))
            }
            fetched => fetched,
        };
        match fetched {
            Ok(fetched) => {
                let fetched = Arc::new(fetched);
                *contact.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&fetched));
                Ok(fetched)
            }
            Err(error) => {
                *turn = Some((self.timers.now(), error.clone()));
                Err(error)
            }
        }
    }

    /// The exchange at a URL that somebody names: only if the configuration names its master key, or an auditor approves.
    async fn stranger(
        &self,
        url: &str,
        suffices: impl Fn(&Exchange) -> bool,
    ) -> Result<Arc<Exchange>, ExchangeError> {
        let known = || self.approved(url).filter(|known| known.serves(&suffices, self.timers.now()));
        if let Some(known) = known() {
            return Ok(known);
        }
        let host = url.split('/').nth(2).unwrap_or_default().to_ascii_lowercase();
        let bytes = self.hosts.hash_one(host).to_le_bytes();
        let turns = async {
            let host = self.turns[usize::from(bytes[0]) % STRANGER_TURNS].lock().await;
            (host, self.strangers.acquire().await)
        };
        let turns = tokio::time::timeout(STRANGER_PATIENCE, turns).await;
        let turns = turns.map_err(|_| ExchangeError::NotAccepted)?;
        if let Some(known) = known() {
            return Ok(known);
        }
        let fetched = self.fetch(&self.far, url, Standing::Named).await;
        let fetched = fetched.map_err(|_| ExchangeError::NotAccepted)?;
        drop(turns);
        let of_key = |contact: &&Arc<Contact>| contact.exchange.master_pub == fetched.master_pub;
        if let Some(contact) = self.trusted.iter().find(of_key) {
            return self.at(contact, suffices).await;
        }
        if !fetched.denoms.values().any(|denom| denom.is_approved) {
            return Err(ExchangeError::NotAccepted);
        }
        if let Some(contact) = self.listed(&fetched.master_pub).await {
            return self.at(&contact, suffices).await;
        }
        let fetched = Arc::new(fetched);
        let mut approved = self.approved.lock().unwrap_or_else(PoisonError::into_inner);
        if approved.len() >= APPROVED_MAX && !approved.contains_key(url) {
            // Whatever is thrown away is fetched again when somebody needs it.
            approved.clear();
        }
        approved.insert(url.to_owned(), Arc::clone(&fetched));
        Ok(fetched)
    }

    fn approved(&self, url: &str) -> Option<Arc<Exchange>> {
        self.approved.lock().unwrap_or_else(PoisonError::into_inner).get(url).cloned()
    }

    /// A contact that auditors have listed, if they have listed any.
    async fn listed_where(&self, is_it: impl Fn(&Contact) -> bool) -> Option<Arc<Contact>> {
        let mut listed = self.listed.lock().await;
        if !listed.contacts.is_empty() {
            self.renew(&mut listed).await;
        }
        listed.contacts.values().find(|contact| is_it(contact)).cloned()
    }

    /// The contact of an exchange by the lists of the auditors that the configuration names.
    async fn listed(&self, master_pub: &EddsaPublicKey) -> Option<Arc<Contact>> {
        let mut listed = self.listed.lock().await;
        self.renew(&mut listed).await;
        listed.contacts.get(master_pub).cloned()
    }

    /// Asks the auditors for their lists, if it is time.
    async fn renew(&self, listed: &mut Listed) {
        if listed.again.is_some_and(|again| self.timers.now() < again) {
            return;
        }
        let lists = self.auditors.iter().map(|auditor| {
            let call = self.auditor_client.get(format!("{}exchanges", auditor.url));
            call.timeout(AUDITOR_TIMEOUT).send()
        });
        let lists = futures_util::future::join_all(lists).await.into_iter();
        let lists: Vec<Option<AuditedExchanges>> = lists.map(|list| list.ok()?.ok().ok()).collect();
        let pause = if lists.iter().all(Option::is_some) { FRESH } else { AUDITOR_PAUSE };
        listed.again = Some(self.timers.now() + pause);
        for AuditedExchange { master_pub, exchange_url: url } in
            lists.into_iter().flatten().flat_map(|list| list.exchanges)
        {
            let is_known = |contact: &Arc<Contact>| contact.exchange.url == url;
            if is_base_url(&url) && !listed.contacts.get(&master_pub).is_some_and(is_known) {
                let contact = Contact::new(TrustedExchange { url, master_pub }, Standing::Listed);
                listed.contacts.insert(master_pub, contact);
            }
        }
    }

    async fn fetch(
        &self,
        clients: &Clients,
        url: &str,
        standing: Standing,
    ) -> Result<Exchange, ExchangeError> {
        let keys: KeysResponse = read(&clients.lists.get_json(format!("{url}keys")).await?)?;
        let wire: WireResponse = read(&clients.lists.get_json(format!("{url}wire")).await?)?;
        let (currency, auditors, now) = (self.currency, self.auditors.clone(), self.timers.now());
        let way = Way { url: url.to_owned(), clients: clients.clone(), standing };
        // Thousands of signatures take a while.
        let verified = run_blocking(move || verify(keys, wire, way, currency, &auditors, now));
        verified.await.expect("verifying does not outlive the runtime")
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
    way: Way,
    currency: Currency,
    auditors: &[ContractAuditor],
    fetched: Instant,
) -> Result<Exchange, ExchangeError> {
    let malformed = |what: &str| ExchangeError::Malformed(what.to_owned());
    let master_pub = keys.master_public_key;
    let is_ours = |listed: &&AuditorKeys| auditors.iter().any(|ours| ours.auditor_pub == listed.auditor_pub);
    let mut approvals: HashMap<HashCode, Vec<(&AuditorKeys, &EddsaSignature)>> = HashMap::new();
    for auditor in keys.auditors.iter().filter(is_ours) {
        for approval in &auditor.denomination_keys {
            approvals.entry(approval.denom_pub_h).or_default().push((auditor, &approval.auditor_sig));
        }
    }
    let mut denoms = HashMap::new();
    let mut add = |key: &DenomPublicKey, terms: &DenominationTerms, signature| {
        let h_denom_pub = key.h_denom_pub();
        if !terms.validity(master_pub, h_denom_pub).verify(&master_pub, signature) {
            return Err(malformed("a denomination is not signed by the exchange's master key"));
        }
        let money = |amount: &Amount| {
            amount.money_in(currency).map_err(|_| malformed("the exchange has another currency"))
        };
        let approves = |(auditor, sig): &(&AuditorKeys, &EddsaSignature)| {
            let message = terms.auditor_approval(&auditor.auditor_url, master_pub, h_denom_pub);
            message.verify(&auditor.auditor_pub, sig)
        };
        let cost = terms.withdraw_cost().map_err(|_| malformed("a denomination is worth too much"))?;
        let denom = Denom {
            cost: money(&cost)?,
            is_approved: approvals.get(&h_denom_pub).is_some_and(|all| all.iter().any(approves)),
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
    // Whatever else stands there about them.
    for revoked in keys.recoup.iter().flatten() {
        denoms.remove(&revoked.h_denom_pub);
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
        auditors: auditor_urls(keys.auditors, auditors, way.standing),
        has_batch_deposit: AtomicBool::new(true),
        signkeys: keys.signkeys,
        wire_fees: wire.fees.into_iter().collect(),
        fetched,
        way,
    })
}

/// The base URLs of an exchange's auditors, each once: those of the configuration before those that the list names, which
/// nobody signs. Only an exchange of the configuration may name others.
fn auditor_urls(listed: Vec<AuditorKeys>, ours: &[ContractAuditor], standing: Standing) -> Vec<String> {
    let is_listed = |ours: &&ContractAuditor| listed.iter().any(|one| one.auditor_pub == ours.auditor_pub);
    let mut urls: Vec<String> = ours.iter().filter(is_listed).map(|auditor| auditor.url.clone()).collect();
    if standing == Standing::Configured {
        let is_other = |one: &AuditorKeys| ours.iter().all(|ours| ours.auditor_pub != one.auditor_pub);
        let others = listed.into_iter().filter(is_other).map(|auditor| auditor.auditor_url);
        let mut others: Vec<String> = others.filter(|url| is_base_url(url)).collect();
        others.sort();
        others.dedup();
        urls.extend(others);
    }
    urls.truncate(AUDITORS_MAX);
    urls
}

/// A base URL in the one spelling by which URLs are compared: scheme and host in small letters, without the usual port.
fn one_spelling(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let (host, path) = rest.split_once('/').unwrap_or_default();
    let (scheme, host) = (scheme.to_ascii_lowercase(), host.to_ascii_lowercase());
    let usual_port = if scheme == "https" { ":443" } else { ":80" };
    format!("{scheme}://{}/{path}", host.strip_suffix(usual_port).unwrap_or(&host))
}

/// Returns whether a wallet may name this base URL: what is asked of the exchange is appended to it, so it must not end
/// in a query or in the middle of a name, and it names no user.
#[must_use]
pub(crate) fn is_base_url(url: &str) -> bool {
    (url.starts_with("http://") || url.starts_with("https://"))
        && url.ends_with('/')
        && url.len() <= URL_BYTES_MAX
        && !url.contains(['?', '#', '@'])
        && url.bytes().all(|b| b.is_ascii_graphic())
}

/// The error of a request whose answer is not known.
#[must_use]
pub(crate) fn is_transient(status: u16) -> bool {
    status >= 500 || status == 429
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_one_spelling() {
        for (one, other) in [
            ("https://E.example/", "https://e.example:443/"),
            ("HTTP://e.example:80/a/", "http://e.example/a/"),
        ] {
            assert_eq!(one_spelling(one), one_spelling(other));
        }
        for (one, other) in [
            ("https://e.example/", "http://e.example/"),
            ("https://e.example/a/", "https://e.example/A/"),
            ("https://e.example:80/", "https://e.example/"),
        ] {
            assert_ne!(one_spelling(one), one_spelling(other));
        }
        for wrong in ["http://e", "http://e/?", "http://u@e/", "http://e /", "http://é/", "file:///"] {
            assert!(!is_base_url(wrong), "{wrong}");
        }
    }

    #[test]
    fn strangers_name_no_auditors_and_none_crowds_out_ours() {
        let key = |n: u8| EddsaPublicKey::from_bytes([n; 32]);
        let listed = |n: u8| AuditorKeys {
            auditor_pub: key(n),
            auditor_url: format!("http://{n}/"),
            auditor_name: String::new(),
            denomination_keys: Vec::new(),
        };
        let ours =
            [ContractAuditor { name: String::new(), auditor_pub: key(99), url: "http://ours/".to_owned() }];
        let all = || (0..100).map(listed).collect::<Vec<_>>();
        let of_configured = auditor_urls(all(), &ours, Standing::Configured);
        assert_eq!((of_configured.len(), &*of_configured[0]), (AUDITORS_MAX, "http://ours/"));
        assert_eq!(auditor_urls(all(), &ours, Standing::Named), ["http://ours/"]);
        assert!(auditor_urls((0..9).map(listed).collect(), &ours, Standing::Named).is_empty());
    }
}
