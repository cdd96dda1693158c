//! The exchanges: who is one, and what it offers, signed by its master key.
//!
//! An exchange is its master key. It is asked at the URL of the configuration only, or at the one that an auditor of the
//! configuration lists, whatever URL a wallet names: its own list leaves out the keys that it has revoked, and nobody in
//! between can answer for it. A wallet's coins identify the exchange, since no two have the same denomination.
//!
//! A signing key that the list once left out is remembered, so that no older list brings it back.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration as StdDuration;

use batzen_crypto::{Cipher, DenomPublicKey, EddsaPublicKey, EddsaSignature, HashCode};
use batzen_engine::{Lane, Timers, run_blocking};
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
use tokio::sync::Mutex as Turn;
use tokio::time::Instant;

use crate::config::TrustedExchange;
use crate::rules::{ListedSignkey, MerchantRules, NoteSignkeys, TypedCommand as _};
use crate::surroundings::Surroundings;

type Result<T, E = ExchangeError> = std::result::Result<T, E>;

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

/// Time for `/keys` or `/wire` of an exchange that only an auditor lists.
const LISTED_TIMEOUT: StdDuration = StdDuration::from_secs(5);
/// The largest `/keys` or `/wire` of an exchange that only an auditor lists, in bytes, inflated.
const LISTED_KEYS_BYTES_MAX: usize = 4 << 20;
/// The maximum number of exchanges that auditors list.
const LISTED_MAX: usize = 256;
/// The maximum number of URLs in a request that the configuration does not name: for each, exchanges may be asked again.
const OTHER_URLS_PER_REQUEST_MAX: usize = 3;
/// The maximum number of signing keys in the list of an exchange.
const SIGNKEYS_MAX: usize = 1_024;
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
    /// Its auditors, which want to see some of its confirmations.
    pub(crate) auditors: Vec<Auditor>,
    /// Cleared when it turns out not to know deposits of several coins.
    pub(crate) has_batch_deposit: AtomicBool,
    signkeys: Vec<SignKey>,
    wire_fees: HashMap<String, Vec<WireFee>>,
    fetched: Instant,
}

/// An auditor of an exchange.
#[derive(Clone, Debug)]
pub(crate) struct Auditor {
    /// The base URL.
    pub(crate) url: String,
    /// Public addresses only, unless the configuration names the URL.
    pub(crate) client: Client,
}

impl Exchange {
    /// The base URL at which it is asked.
    pub(crate) fn url(&self) -> &str {
        &self.way.url
    }

    /// Starts a request about a coin, a reserve or an account.
    pub(crate) fn get(&self, path: &str) -> Call<'_> {
        self.way.clients.coins.get(format!("{}{path}", self.way.url))
    }

    /// Starts a request that changes something.
    pub(crate) fn post(&self, path: &str) -> Call<'_> {
        self.way.clients.coins.post(format!("{}{path}", self.way.url))
    }

    /// Starts a request for a long list.
    pub(crate) fn get_list(&self, path: &str) -> Call<'_> {
        self.way.clients.lists.get(format!("{}{path}", self.way.url))
    }

    /// Returns whether coins of a denomination are accepted: the exchange is, or an auditor approves of the denomination.
    #[must_use]
    pub(crate) fn is_accepted(&self, denom: &Denom) -> bool {
        self.way.standing == Standing::Configured || denom.is_approved
    }

    /// Returns whether this key could confirm a deposit at this time.
    #[must_use]
    pub(crate) fn signs_with(&self, key: &EddsaPublicKey, time: Timestamp) -> bool {
        self.signkeys.iter().any(|signkey| signkey.key == *key && time < signkey.stamp_end)
    }

    /// Returns whether it has a key with which it can confirm a deposit now.
    #[must_use]
    pub(crate) fn can_sign(&self, now: Timestamp) -> bool {
        self.signkeys.iter().any(|signkey| signkey.stamp_start <= now && now < signkey.stamp_expire)
    }

    /// A signing key, with the master key's signature.
    pub(crate) fn signkey(&self, key: &EddsaPublicKey) -> Option<&SignKey> {
        self.signkeys.iter().find(|signkey| signkey.key == *key)
    }

    /// The wire fee of a method; none if the exchange has not published it.
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
    /// Neither the configuration nor an auditor names the exchange.
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

/// The clients for exchanges of a kind, and for their auditors.
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
    /// Whether all of them answered the last time.
    is_whole: bool,
}

pub(crate) struct Exchanges {
    /// For URLs of the configuration.
    near: Clients,
    /// For URLs that others name.
    far: Clients,
    /// Remembers the signing keys that exchanges have withdrawn.
    lane: Lane<MerchantRules>,
    currency: Currency,
    trusted: Vec<Arc<Contact>>,
    auditors: Vec<ContractAuditor>,
    listed: Turn<Listed>,
    timers: Arc<dyn Timers>,
}

impl Exchanges {
    /// Knows nothing yet. URLs that the configuration does not name are asked at addresses of the public Internet and in
    /// these networks.
    ///
    /// # Errors
    /// When the HTTP client cannot be made.
    pub(crate) fn new(
        currency: Currency,
        trusted: &[TrustedExchange],
        auditors: Vec<ContractAuditor>,
        networks: Networks,
        lane: Lane<MerchantRules>,
        surroundings: &Surroundings,
    ) -> Result<Self, ClientError> {
        let clients = |destinations: &Destinations, timeout, list_bytes_max| {
            Clients::new(surroundings, destinations, timeout, list_bytes_max)
        };
        Ok(Self {
            near: clients(&Destinations::All, EXCHANGE_TIMEOUT, KEYS_BYTES_MAX)?,
            far: clients(&Destinations::Public(networks), LISTED_TIMEOUT, LISTED_KEYS_BYTES_MAX)?,
            lane,
            currency,
            trusted: trusted.iter().map(|one| Contact::new(one.clone(), Standing::Configured)).collect(),
            auditors,
            listed: Turn::default(),
            timers: Arc::clone(&surroundings.timers),
        })
    }

    /// The exchanges that contracts name.
    pub(crate) fn trusted(&self) -> impl Iterator<Item = &TrustedExchange> {
        self.trusted.iter().map(|contact| &contact.exchange)
    }

    /// Returns whether a request may name these URLs: for each that the configuration does not name, exchanges may be asked
    /// again.
    pub(crate) fn are_few<'a>(&self, urls: impl Iterator<Item = &'a str>) -> bool {
        let others: std::collections::BTreeSet<&str> =
            urls.filter(|url| self.configured(url).is_none()).collect();
        others.len() <= OTHER_URLS_PER_REQUEST_MAX
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
    pub(crate) async fn of_coins(&self, url: &str, denoms: &[HashCode]) -> Result<Arc<Exchange>> {
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
        let is_it = |contact: &Contact| contact.known().is_some_and(|known| issued(&known));
        match (self.listed(url, is_it).await, failure) {
            (Ok(contact), _) => self.at(&contact, knows_all).await,
            (Err(failure), ExchangeError::NotAccepted) | (Err(_), failure) => Err(failure),
        }
    }

    /// The exchange that coins, transfers or reserves in the store have under a URL, which may be one that a wallet named.
    /// If what is known of it does not satisfy `suffices`, it is fetched again, though not at every request.
    ///
    /// # Errors
    /// [`ExchangeError`] if nothing is known and it cannot be fetched.
    pub(crate) async fn get(&self, url: &str, suffices: impl Fn(&Exchange) -> bool) -> Result<Arc<Exchange>> {
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
    ) -> Result<Arc<Exchange>> {
        if let Some(contact) = self.configured(url) {
            return self.at(contact, suffices).await;
        }
        let contact = self.listed(url, |_| false).await?;
        self.at(&contact, suffices).await
    }

    /// The exchange at its own URL.
    async fn at(&self, contact: &Contact, suffices: impl Fn(&Exchange) -> bool) -> Result<Arc<Exchange>> {
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
        match self.fetch(clients, url, *master_pub, contact.standing).await {
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

    /// The contact of an exchange that an auditor of the configuration lists: the one that is meant, or the one at the URL.
    async fn listed(&self, url: &str, is_it: impl Fn(&Contact) -> bool) -> Result<Arc<Contact>> {
        let url = one_spelling(url);
        let mut listed = self.listed.lock().await;
        self.renew(&mut listed).await;
        let mut contacts = listed.contacts.values();
        let at_url = |contact: &&Arc<Contact>| one_spelling(&contact.exchange.url) == url;
        let found = contacts.clone().find(|contact| is_it(contact)).or_else(|| contacts.find(at_url));
        let Some(found) = found else {
            let silent =
                || ExchangeError::Unreachable("an auditor did not say which exchanges it audits".to_owned());
            return Err(if listed.is_whole { ExchangeError::NotAccepted } else { silent() });
        };
        let is_same = |contact: &&Arc<Contact>| contact.exchange.master_pub == found.exchange.master_pub;
        Ok(Arc::clone(self.trusted.iter().find(is_same).unwrap_or(found)))
    }

    /// Asks the auditors for their lists, if it is time.
    async fn renew(&self, listed: &mut Listed) {
        if listed.again.is_some_and(|again| self.timers.now() < again) {
            return;
        }
        let lists = self.auditors.iter().map(|auditor| {
            let call = self.near.coins.get(format!("{}exchanges", auditor.url));
            call.timeout(AUDITOR_TIMEOUT).send()
        });
        let lists = futures_util::future::join_all(lists).await.into_iter();
        let lists: Vec<Option<AuditedExchanges>> = lists.map(|list| list.ok()?.ok().ok()).collect();
        listed.is_whole = lists.iter().all(Option::is_some);
        let pause = if listed.is_whole { FRESH } else { AUDITOR_PAUSE };
        listed.again = Some(self.timers.now() + pause);
        if listed.is_whole {
            // What no auditor lists any more is not asked any more.
            let all = lists.iter().flatten().flat_map(|list| &list.exchanges);
            let named: HashSet<EddsaPublicKey> = all.map(|exchange| exchange.master_pub).collect();
            listed.contacts.retain(|master_pub, _| named.contains(master_pub));
        }
        for AuditedExchange { master_pub, exchange_url: url } in
            lists.into_iter().flatten().flat_map(|list| list.exchanges)
        {
            let is_known = |contact: &Arc<Contact>| contact.exchange.url == url;
            let has_room = listed.contacts.len() < LISTED_MAX || listed.contacts.contains_key(&master_pub);
            if is_base_url(&url) && has_room && !listed.contacts.get(&master_pub).is_some_and(is_known) {
                let contact = Contact::new(TrustedExchange { url, master_pub }, Standing::Listed);
                listed.contacts.insert(master_pub, contact);
            }
        }
    }

    async fn fetch(
        &self,
        clients: &Clients,
        url: &str,
        master_pub: EddsaPublicKey,
        standing: Standing,
    ) -> Result<Exchange> {
        let keys: KeysResponse = read(&clients.lists.get_json(format!("{url}keys")).await?)?;
        let wire: WireResponse = read(&clients.lists.get_json(format!("{url}wire")).await?)?;
        if keys.master_public_key != master_pub {
            return Err(ExchangeError::Malformed(format!("{url} has another master key")));
        }
        let (currency, auditors, now) = (self.currency, self.auditors.clone(), self.timers.now());
        let auditor_clients = [&self.near, &self.far].map(|clients| clients.coins.clone());
        let way = Way { url: url.to_owned(), clients: clients.clone(), standing };
        // Thousands of signatures take a while.
        let verify = move || verify(keys, wire, way, currency, &auditors, auditor_clients, now);
        let exchange = run_blocking(verify).await.expect("verifying does not outlive the runtime")?;
        self.without_withdrawn(exchange).await
    }

    /// Leaves out the signing keys that the exchange has withdrawn before, and remembers those that it withdraws now.
    async fn without_withdrawn(&self, mut exchange: Exchange) -> Result<Exchange> {
        let listed = exchange.signkeys.iter().map(|signkey| ListedSignkey {
            exchange_pub: signkey.key,
            stamp_start: signkey.stamp_start,
            stamp_expire: signkey.stamp_expire,
            stamp_end: signkey.stamp_end,
        });
        let note = NoteSignkeys { master_pub: exchange.master_pub, listed: listed.collect() };
        let noted = self.lane.submit(note.into()).await;
        let noted = noted.map_err(|error| ExchangeError::Unreachable(format!("the store: {error}")))?;
        let refused = noted.map(NoteSignkeys::answer).expect("the rule refuses nothing");
        if !refused.is_empty() {
            let (url, keys) = (exchange.url(), refused.len());
            tracing::warn!(
                url,
                keys,
                "an exchange lists signing keys that it left out before, or that are over: refused"
            );
            exchange.signkeys.retain(|signkey| !refused.contains(&signkey.key));
        }
        Ok(exchange)
    }
}

fn read<T: serde::de::DeserializeOwned>(reply: &Reply) -> Result<T> {
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
    auditor_clients: [Client; 2],
    fetched: Instant,
) -> Result<Exchange> {
    let malformed = |what: &str| ExchangeError::Malformed(what.to_owned());
    let master_pub = keys.master_public_key;
    let is_ours = |listed: &AuditorKeys| auditors.iter().any(|ours| ours.auditor_pub == listed.auditor_pub);
    let mut approvals: HashMap<HashCode, Vec<(&AuditorKeys, &EddsaSignature)>> = HashMap::new();
    for auditor in &keys.auditors {
        for approval in &auditor.denomination_keys {
            approvals.entry(approval.denom_pub_h).or_default().push((auditor, &approval.auditor_sig));
        }
    }
    let mut denoms = HashMap::new();
    let mut vouching = BTreeSet::new();
    let mut add = |key: &DenomPublicKey, terms: &DenominationTerms, signature| {
        let h_denom_pub = key.h_denom_pub();
        if !terms.validity(master_pub, h_denom_pub).verify(&master_pub, signature) {
            return Err(malformed("a denomination is not signed by the exchange's master key"));
        }
        let money = |amount: &Amount| {
            amount.money_in(currency).map_err(|_| malformed("the exchange has another currency"))
        };
        let mut is_approved = false;
        for (auditor, sig) in approvals.get(&h_denom_pub).into_iter().flatten() {
            let is_ours = is_ours(auditor);
            let is_known = if is_ours { is_approved } else { vouching.contains(&auditor.auditor_url) };
            let message = terms.auditor_approval(&auditor.auditor_url, master_pub, h_denom_pub);
            if is_known || !message.verify(&auditor.auditor_pub, sig) {
                continue;
            }
            if is_ours {
                is_approved = true;
            } else {
                vouching.insert(auditor.auditor_url.clone());
            }
        }
        let cost = terms.withdraw_cost().map_err(|_| malformed("a denomination is worth too much"))?;
        let denom = Denom {
            cost: money(&cost)?,
            is_approved,
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
    if keys.signkeys.len() > SIGNKEYS_MAX {
        return Err(malformed("the exchange has too many signing keys"));
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
    let [near, far] = auditor_clients;
    let to_call = auditor_urls(&keys.auditors, vouching, auditors, way.standing).into_iter().map(|url| {
        let is_ours = auditors.iter().any(|ours| ours.url == url);
        Auditor { client: if is_ours { near.clone() } else { far.clone() }, url }
    });
    Ok(Exchange {
        master_pub,
        denoms,
        accounts: wire.accounts.into_iter().map(|account| account.payto_uri).collect(),
        closing_delay: keys.reserve_closing_delay,
        auditors: to_call.collect(),
        has_batch_deposit: AtomicBool::new(true),
        signkeys: keys.signkeys,
        wire_fees: wire.fees.into_iter().collect(),
        fetched,
        way,
    })
}

/// The base URLs of an exchange's auditors, each once: those of the configuration before those that approve of a denomination
/// with their signature. Only an exchange of the configuration may name others, since nobody signs the list.
fn auditor_urls(
    listed: &[AuditorKeys],
    vouching: BTreeSet<String>,
    ours: &[ContractAuditor],
    standing: Standing,
) -> Vec<String> {
    let is_listed = |ours: &&ContractAuditor| listed.iter().any(|one| one.auditor_pub == ours.auditor_pub);
    let mut urls: Vec<String> = ours.iter().filter(is_listed).map(|auditor| auditor.url.clone()).collect();
    if standing == Standing::Configured {
        let others: Vec<String> =
            vouching.into_iter().filter(|url| is_base_url(url) && !urls.contains(url)).collect();
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
    fn only_auditors_that_sign_are_called_and_none_crowds_out_ours() {
        let key = |n: u8| EddsaPublicKey::from_bytes([n; 32]);
        let listed = |n: u8| AuditorKeys {
            auditor_pub: key(n),
            auditor_url: format!("http://{n}/"),
            auditor_name: String::new(),
            denomination_keys: Vec::new(),
        };
        let ours =
            [ContractAuditor { name: String::new(), auditor_pub: key(99), url: "http://ours/".to_owned() }];
        let (urls, all): (BTreeSet<_>, Vec<_>) =
            (0..100).map(|n| (format!("http://{n}/"), listed(n))).unzip();
        let of_configured = auditor_urls(&all, urls.clone(), &ours, Standing::Configured);
        assert_eq!((of_configured.len(), &*of_configured[0]), (AUDITORS_MAX, "http://ours/"));
        assert_eq!(auditor_urls(&all, urls.clone(), &ours, Standing::Listed), ["http://ours/"]);
        assert!(auditor_urls(&all[..9], urls, &ours, Standing::Listed).is_empty());
        assert!(auditor_urls(&all[..9], BTreeSet::new(), &ours, Standing::Configured).is_empty());
    }
}
