//! An exchange of ours, configured as the recorded one was: currency, denominations, accounts, times. It has
//! the recordings' master key, so most management requests can be sent as they were recorded.

use std::collections::BTreeMap;
use std::path::Path;

use batzen_crypto::{DenomKey, EddsaPrivateKey, EddsaPublicKey};
use batzen_exchange::config::{
    AgeRestrictionConfig, CipherConfig, CoinConfig, CoinFees, ExchangeConfig, GatewayAuth, GatewayConfig,
};
use batzen_exchange::rules::Answer;
use batzen_exchange::service::RunningExchange;
use batzen_exchange::storage::StoreConfig;
use batzen_exchange::workers::{aggregator, closer, expire};
use batzen_http::client::{Client, ClientOptions};
use batzen_protocol::api::exchange::{FutureKeys, KeysResponse};
use batzen_protocol::denominations::DenominationInfo;
use batzen_protocol::{Amount, Currency, Duration, Money, Timestamp};
use batzen_tables::exchange::AccountId;
use serde_json::Value;
use tempfile::TempDir;

use crate::oauth::OAuthProvider;
use crate::replay::provider;
use crate::replay::recording::Scenario;
use crate::replay::side::Side;
use crate::running::{TestClock, book, credit, start_ready};

/// The parameters that distinguish the sections of denominations: value, fees, cipher, age mask.
type SectionKey = (Money, [Money; 4], u32, u32);

fn section_key(info: &DenominationInfo) -> SectionKey {
    let terms = &info.terms;
    let fees = [terms.fee_withdraw, terms.fee_deposit, terms.fee_refresh, terms.fee_refund];
    let bits = match &info.denom_pub.key {
        DenomKey::Rsa(key) => key.bits(),
        DenomKey::Cs(_) => 0,
    };
    (terms.value.money, fees.map(|fee| fee.money), bits, info.denom_pub.age_mask)
}

/// The keys of each section, in the order of their times.
fn sections(side: &Side) -> BTreeMap<SectionKey, Vec<&DenominationInfo>> {
    let mut sections: BTreeMap<SectionKey, Vec<&DenominationInfo>> = BTreeMap::new();
    for info in side.denominations.values() {
        sections.entry(section_key(info)).or_default().push(info);
    }
    for keys in sections.values_mut() {
        keys.sort_by_key(|info| info.terms.stamp_start);
    }
    sections
}

/// Pairs the keys of two sides: recorded and ours.
pub(super) fn pairs<'a>(
    recorded: &'a Side,
    ours: &'a Side,
) -> Vec<(&'a DenominationInfo, &'a DenominationInfo)> {
    let ours = sections(ours);
    let mut pairs = Vec::new();
    for (section, keys) in sections(recorded) {
        let own = ours.get(&section).unwrap_or_else(|| panic!("no denominations {section:?}"));
        pairs.extend(keys.into_iter().zip(own.iter().copied()));
    }
    pairs
}

/// Pairs the signing keys of two sides.
pub(super) fn signing_pairs(recorded: &Side, ours: &Side) -> Vec<(EddsaPublicKey, EddsaPublicKey)> {
    let sorted = |side: &Side| {
        let mut keys: Vec<_> = side.signing_keys.values().map(|key| (key.start, key.signkey_pub)).collect();
        keys.sort();
        keys
    };
    sorted(recorded)
        .into_iter()
        .zip(sorted(ours))
        .map(|((_, recorded), (_, ours))| (recorded, ours))
        .collect()
}

/// Returns the side with all that the recorded exchange published.
pub(super) fn recorded_side(scenario: &Scenario) -> Side {
    let mut history_fee = None;
    let mut side: Option<Side> = None;
    for line in scenario.requests() {
        let body = &line.response.body;
        match (line.request.method.as_str(), line.request.segments().as_slice(), line.response.status) {
            ("GET", ["keys"], 200) => {
                let Ok(keys) = serde_json::from_value::<KeysResponse>(body.clone()) else { continue };
                let zero = Amount::zero(Currency::new(keys.currency.as_str()).unwrap());
                side.get_or_insert_with(|| Side::new(keys.base_url.clone(), keys.master_public_key, zero))
                    .add_keys(&keys);
            }
            ("POST", ["management", "global-fee"], 204) => {
                history_fee = line.request.body["history_fee"].as_str().map(|fee| fee.parse().unwrap());
            }
            _ => {}
        }
    }
    let mut side = side.expect("every recording has keys");
    announced(scenario).for_each(|keys| side.add_future_keys(&keys));
    side.history_fee = history_fee.unwrap_or(side.history_fee);
    side
}

/// The announcements of keys.
fn announced(scenario: &Scenario) -> impl Iterator<Item = FutureKeys> {
    scenario
        .requests()
        .filter(|line| line.request.path == "/management/keys" && line.is_ok())
        .filter_map(|line| serde_json::from_value(line.response.body.clone()).ok())
}

/// The recorded names of sections.
fn section_names(scenario: &Scenario) -> BTreeMap<SectionKey, String> {
    let denoms = announced(scenario).flat_map(|keys| keys.future_denoms);
    denoms
        .map(|denom| {
            let info = DenominationInfo::new(denom.denom_pub.clone(), denom.terms());
            (section_key(&info), denom.section_name)
        })
        .collect()
}

/// Time that neighbouring keys overlap.
fn overlap(recorded: &Side) -> Duration {
    let pairs = sections(recorded).into_values().find_map(|keys| {
        let next = keys.get(1)?.terms.stamp_start;
        Some(keys[0].terms.stamp_expire_withdraw.saturating_since(next))
    });
    pairs.expect("a section with two keys")
}

/// A period that needs this number of keys.
fn lookahead(duration: Duration, overlap: Duration, count: usize) -> Duration {
    let step = duration.as_micros() - overlap.as_micros();
    let whole = Duration::from_micros(step * count as u64 - step / 2).as_secs();
    Duration::from_secs(whole.unwrap())
}

fn text_in<'a>(scenario: &'a Scenario, name: &str) -> Option<&'a str> {
    let mut lines = scenario.requests().filter(|line| line.is_ok());
    lines.find_map(|line| line.request.body.get(name).or_else(|| line.response.body.get(name))?.as_str())
}

fn config(scenario: &Scenario, recorded: &Side, directory: &Path) -> ExchangeConfig {
    let currency = recorded.history_fee.currency;
    let mut config = ExchangeConfig::local(currency, directory, 0);
    config.base_url.clone_from(&recorded.base_url);
    config.standalone = None;
    config.master_public_key = Some(recorded.master_pub);
    config.store = StoreConfig::Memory;
    config.crypto_threads = 2;
    let groups = scenario.requests().find_map(|line| {
        let path = |body: &Value| {
            Some(body.pointer("/extensions/age_restriction/config/age_groups")?.as_str()?.to_owned())
        };
        path(&line.request.body).or_else(|| path(&line.response.body))
    });
    let groups = groups.as_deref().unwrap_or(AgeRestrictionConfig::DEFAULT_GROUPS);
    if recorded.denominations.values().any(|info| info.denom_pub.age_mask != 0) {
        config.age_restriction = AgeRestrictionConfig::parse(groups);
    }
    let names = section_names(scenario);
    let overlap = overlap(recorded);
    for (number, (key, keys)) in sections(recorded).into_iter().enumerate() {
        let (value, [withdraw, deposit, refresh, refund], bits, age_mask) = key;
        let terms = &keys[0].terms;
        let duration_withdraw = terms.stamp_expire_withdraw.saturating_since(terms.stamp_start);
        config.coins.push(CoinConfig {
            section: names.get(&key).cloned().unwrap_or_else(|| format!("coin_{number}")),
            value,
            duration_withdraw,
            duration_spend: terms.stamp_expire_deposit.saturating_since(terms.stamp_expire_withdraw),
            duration_legal: terms.stamp_expire_legal.saturating_since(terms.stamp_expire_deposit),
            fees: CoinFees { withdraw, deposit, refresh, refund },
            cipher: if bits == 0 { CipherConfig::Cs } else { CipherConfig::Rsa { bits } },
            age_restricted: age_mask != 0,
        });
        let module = if bits == 0 { &mut config.module_cs } else { &mut config.module_rsa };
        module.overlap_duration = overlap;
        module.lookahead_sign = lookahead(duration_withdraw, overlap, keys.len());
    }
    let key = recorded.signing_keys.values().min_by_key(|key| key.start).expect("a signing key");
    config.signkey_duration = key.expire.saturating_since(key.start);
    config.signkey_legal_duration = key.end.saturating_since(key.expire);
    config.module_eddsa.overlap_duration = overlap;
    config.module_eddsa.lookahead_sign =
        lookahead(config.signkey_duration, overlap, recorded.signing_keys.len());
    let gateway = GatewayConfig { url: "http://127.0.0.1:1/".into(), auth: GatewayAuth::None };
    let account = text_in(scenario, "payto_uri").unwrap_or(FLOAT);
    config.default_purse_limit = FREE_PURSES;
    config.with_account("exchange-account-1", account, gateway)
}

/// The purses that a year's account fee pays for. The recorded number is not shown, but two were free.
const FREE_PURSES: u32 = 2;
/// The accounts that pay for the coins which the recordings use without showing their withdrawal.
const FLOAT: &str = "payto://x-taler-bank/localhost/float";
/// Bank rows of those payments, above all recorded ones.
const FLOAT_ROWS: u64 = 1 << 32;

pub(crate) struct Stage {
    pub running: RunningExchange,
    pub client: Client,
    /// The keys that our exchange announced when it started.
    pub future: FutureKeys,
    clock: TestClock,
    account: String,
    rows: u64,
    _directory: TempDir,
    _provider: Option<OAuthProvider>,
}

impl Stage {
    pub(crate) async fn start(scenario: &Scenario, recorded: &Side) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(scenario, recorded, directory.path());
        let uses_kyc = scenario.requests().any(|line| line.response.status == 451);
        let provider = if uses_kyc { Some(provider::start(&mut config).await) } else { None };
        let account = config.accounts[0].payto_uri.clone();
        let start = recorded.denominations.values().map(|info| info.terms.stamp_start).min();
        let clock = TestClock::at(start.expect("denominations"));
        let running = start_ready(config, &clock).await;
        let client = Client::new(&ClientOptions::default()).unwrap();
        let port = running.bound().port().unwrap();
        let url = format!("http://127.0.0.1:{port}/management/keys");
        let future = client.get(url).send().await.unwrap().ok().unwrap();
        let (rows, _directory, _provider) = (FLOAT_ROWS, directory, provider);
        Self { running, client, future, clock, account, rows, _directory, _provider }
    }

    pub(crate) fn port(&self) -> u16 {
        self.running.bound().port().expect("it listens on a port")
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port())
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Moves the clock forward, and does what is due then.
    pub(crate) async fn advance(&self, to: Timestamp) {
        if to > self.now() {
            self.clock.set(to);
            expire::run_until_idle(&self.running.app().core).await.unwrap();
        }
    }

    /// Decides on everything that is due to be paid to a bank account.
    pub(crate) async fn pay_out(&self) {
        let core = &self.running.app().core;
        aggregator::run_until_idle(core).await.unwrap();
        closer::run_until_idle(core).await.unwrap();
    }

    /// Books a bank transfer to a reserve.
    pub(crate) async fn credit(&self, row: u64, reserve_pub: EddsaPublicKey, amount: Money, from: &str) {
        let credit = credit(row, reserve_pub, amount, from, self.now());
        let command = book(AccountId::of_payto(&self.account), credit);
        let core = &self.running.app().core;
        let Ok(Answer::Credits(credited)) = core.submit(command).await.unwrap() else {
            panic!("credits are booked");
        };
        core.notices.reserves_credited(&credited.reserves);
    }

    /// A new reserve that pays for coins which the recordings use without showing their withdrawal.
    pub(crate) async fn float(&mut self, amount: Money) -> EddsaPrivateKey {
        let key = EddsaPrivateKey::generate();
        self.rows += 1;
        // Each from another account, so that no limit applies to them together.
        let from = format!("{FLOAT}-{0}?receiver-name=Float", self.rows);
        self.credit(self.rows, key.public_key(), amount, &from).await;
        key
    }
}
