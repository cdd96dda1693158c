//! The exchange's keys and published data, which are the same in all runs and created once per process.
//! Private keys are constants, so that a seed gives the same bytes everywhere.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use batzen_crypto::{DenomPrivateKey, EddsaPrivateKey, EddsaPublicKey, HashCode, RsaPrivateKey, hash};
use batzen_exchange::config::{
    CipherConfig, CoinConfig, CoinFees, ExchangeConfig, GatewayAuth, GatewayConfig, KycConfig,
    KycLogicConfig, KycOfficerConfig, KycProviderConfig,
};
use batzen_exchange::offline::{self, GlobalFeeTerms, OfflineError};
use batzen_exchange::rules::{KycProvider, KycRule, KycRules, KycUserType};
use batzen_http::client::Client;
use batzen_protocol::api::offline::OfflineOperation;
use batzen_protocol::{Amount, Currency, Duration, Money, Timestamp};
use batzen_signer::SecurityModules;
use batzen_store::memory::MemoryBackend;
use batzen_store::{ChangeSet, Store, StoreError, Table};
use batzen_tables::exchange::{
    Counters, DenomKey, DenomSerial, Denominations, GlobalFees, KycOperation, SigningKeys, WireAccounts,
    WireFees,
};
use batzen_wallet::core::Change;
use batzen_wallet::core::exchange::{Exchange, ExchangeUpdate};

use crate::officer::TOKEN;
use crate::random::Random;
use crate::service::Service;

/// The start of every run, in seconds since the epoch.
pub const START_S: u64 = 1_795_132_800;
/// Base URL of the exchange.
pub const EXCHANGE_URL: &str = "http://exchange.test/";
/// Base URL of the bank.
pub const BANK_URL: &str = "http://bank.test/";
/// Name of the exchange's account at the bank.
pub const EXCHANGE_ACCOUNT: &str = "exchange";
/// Wire method of all accounts.
pub const METHOD: &str = "x-taler-bank";
const FIRST_GENERATION_S: u64 = 2 * 3600;

/// Primes of RSA-1024 keys that are only used here.
const PRIMES: [(&str, &str); 13] = [
    (
        "cff4a4bca4eb95c13e6492755be26b374dc2fbd780d8c881c7bc7cbd9c8b6744421bfbeeb2342d694aa6a67a9c7cd901712b98f861e2447fe2665be7b0ac6e57",
        "e115976234446b5927a075bb552cbbe079895d2e3680df909cdaf6d7a4bf43a3358ad2ff88bdf93146a9c63ab6233f485fcd8898f8ead6de4d6b71f013d40e8f",
    ),
    (
        "f0e6101b4a660763a2015a5294c2cc805c4e96e2e9e9d9eaeeb4e576c8576e88609b6d0dbc4a6fc7afce6f53351b79436d6996c243cf2c47d760de96db9dd20d",
        "d4cf69f5d84fff9167ea7daf7c52136442011edb3a7d521283d443eadf25194939e1a801f1de63f8fb7591b56803d756cebda555aa79ba4d8020a45f7445402d",
    ),
    (
        "cd86d886574846358a2fc20f3193e8049aaffa8dc82d7f7bda9d65f6881f232025b43b4ebfb00874dcbecc083557b69ab481342a46d5cd064d2e5663096f6e35",
        "e7858d7c294dcf3405f12f1d951f3773442ade2a22d5e51ea387f3145cdd61a96b80512f64acee4d10d9a0c9fee195e996556fdf86b0ebf34c574412d619a56f",
    ),
    (
        "cd0f7bad813dc8fd3df2711dcc9fa516e17f62ceec7a8a5dbb227001581d7ec5482029b808c681ddf707a6b96293aa043ae701bac65eb6c80c0ad150ea74c151",
        "f0e6a6bc12933c65695b66721fabab00c6de6ed11ee03f37f6700579564c81cb353217f083e217eb58afa010c1469382e5e11c153ebbf44a9ccba6615d3157b5",
    ),
    (
        "de6e5f61a2bac6ff47b62526a1aaac34ae878b17aa112932cc7304fd415e03f49a36fd23e8d66149a0e50b6590cbb42cada2dcde7e1b1aa8deac69c87886bfcd",
        "e116b53be23a98c495d71f01ab778d4ab47b0b9425d46266abf2c8cae47e0c4087718161da48165d20c9c500743e7db4fd41f634e117f3e02aa44667db300823",
    ),
    (
        "fd4c0e434d3c4ed733d90cf7f8da307c6cca4d9a1e2264c7d6cd131386ef775644974a163ffe408f58c97c3ef1a027d55f7419eb0d6ba98a4695bfc0e7c6f80b",
        "e41a32cd3dd0e05fce705e7ea84059e95ce792b652453ca2d6b0b91a6c614c4252d5966a5c2e6f052ff7574007aed9eb92d860621f95e5f58cd0e9aeec8e2bfb",
    ),
    (
        "f69f09505d01dce4c434ea34bb218a07e3ec2359d406433ed4ad4e66c2fcb4cdb5a659792b59e355b50b803e9da5422c9753d1470ff171fe4e659427be14eba1",
        "d277e280718f75e4d86d2b63db99c060bb96bff9057e9e24b65bbca99057d24f68ad6a7597af5852301c11596d23f73baea5891452eac783d0580e7eaf3f579d",
    ),
    (
        "f81860f32517025276e9ab02e8ef3d285e9bf1d0eabdeb6bf11ad58fb41cd357f38e480e6beb7c3150b0f52c19f90eb7b2474acfe8f0c3c50e68658a01b0ad9b",
        "f8b8982360cb7ac4f4f53787fbba5786fc26935c4ec70cd96966e64719f2e0a1c0fcd194be7bb1751f933239dd92e0d221d8f376b241afff0001037a462729c3",
    ),
    (
        "ea225c0809a47dbb07f46e5bebbf683ce8fef384738ea7b6d7a24f532672c958ab906cbf89bf4de80c57b692cc7e8dcbfd62eee582e68ef30d6bad447e7515b9",
        "d7c14ed0509bd6d6b2722ab2848ac3e3297bd578155679884832945c84670c7f4636bb4619b6aafedfe77a6454c0825d9d8e46436a82b3216060741b36884ec5",
    ),
    (
        "db3868085a308d7368a9207a24d3897bf803ccca2fa947b09f6a9375b9f2841d0fdca72411b5b96dd7bfe9ba42abc0634139fb3de71a794f3e27a1c5995c057b",
        "ed2cd9e70671dfe9c60dfb1202add40e77b239da460f2125b0b9b075a7187f247d439614c16ae84774aedce1e5c92356c00b9f92cd0cb5970abb1e46f08ef91b",
    ),
    (
        "f7e664cd585829b05f820c3de72e9ab28832bf889475b1f6d4f5224b5544ab0331ac3bab885772d367e81dd50cae732379e101346c4e8d023ec9d5384b0fc511",
        "eccdf7e769d2db9f575cc3caca75b72e46e57a1eada36992dd27c1653cc44986734c45d928b75fa30a3a564e88eaac70cc5f50c3f7d2ccdb563b8e68f40a65c5",
    ),
    (
        "e8c578988cd5c2f95d8f310eca32d0230b1ea1c48f68fafcad234b9ac9f8cf82cbd398e8cb057bc96680a6d52ed9cebe1006d627e0e7736f84d7ac6475a2797f",
        "d654d8dde3ff4befe1d81d7bb08621b137e2a4005f37f9f400d86bd44a61db94d0d72be7273136f24fe62ef776fc9a0e3af31abed420cfb70707f210c908bc5f",
    ),
    (
        "f86c0fa5770ffaf6c0844cdb654be62ad4f88ff705a06f97e172a9c1429f275d569dab342c53eaf6554af974a479579b7db71ff1b4358d03c9e4585a53562d85",
        "e6f36c991198b6819f13af9e26191ff7c36f767f104b2b78dc6d4d28c289b2eb8c87265b910c829b0c9fc34cd4e515a8febde4c13b25375df34ff8b633227fc9",
    ),
];

/// A denomination to be made.
#[derive(Clone, Copy)]
struct Spec {
    source: Source,
    /// Value in cents.
    value: u64,
    /// Withdraw fee in cents.
    fee_withdraw: u64,
    /// Fee for melts in cents.
    fee_refresh: u64,
    /// Time that coins can be withdrawn, in seconds.
    issue_s: u64,
    /// Time that coins can be spent, in days.
    spend_days: u64,
}

const fn spec(source: Source, value: u64, fee_withdraw: u64, is_first: bool) -> Spec {
    let issue_s = if is_first { FIRST_GENERATION_S } else { 30 * 24 * 3600 };
    Spec { source, value, fee_withdraw, fee_refresh: 1, issue_s, spend_days: 100 }
}

/// Number of denominations of the fault simulation.
pub const DENOMS: usize = 7;
/// The denominations of the fault simulation.
const COINS: [Spec; DENOMS] = [
    spec(Source::Rsa(0), 100, 0, true),
    spec(Source::Cs(1), 200, 0, true),
    spec(Source::Rsa(1), 400, 1, false),
    spec(Source::Rsa(2), 100, 1, false),
    spec(Source::Cs(2), 200, 1, false),
    spec(Source::Cs(3), 50, 1, false),
    spec(Source::Cs(4), 10, 1, false),
];

const fn town_coin(source: Source, value: u64) -> Spec {
    // Wallets pay no fees in the town. Shops bear the deposit fees.
    Spec { source, value, fee_withdraw: 0, fee_refresh: 0, issue_s: 365 * 24 * 3600, spend_days: 2 * 365 }
}

/// The denominations of the privacy game's town: 5 cents to 200, both ciphers.
const TOWN_COINS: [Spec; 12] = [
    town_coin(Source::Rsa(0), 5),
    town_coin(Source::Rsa(1), 10),
    town_coin(Source::Cs(5), 20),
    town_coin(Source::Rsa(2), 50),
    town_coin(Source::Rsa(3), 100),
    town_coin(Source::Rsa(4), 200),
    town_coin(Source::Rsa(5), 500),
    town_coin(Source::Rsa(6), 1_000),
    town_coin(Source::Cs(6), 2_000),
    town_coin(Source::Rsa(7), 5_000),
    town_coin(Source::Rsa(8), 10_000),
    town_coin(Source::Rsa(9), 20_000),
];

#[derive(Clone, Copy)]
enum Source {
    Rsa(usize),
    Cs(u8),
}

/// A denomination.
pub struct Denom {
    /// Its number in the exchange's store.
    pub serial: DenomSerial,
    /// Its hash.
    pub h: HashCode,
    /// The value of a coin.
    pub value: Money,
    /// The last moment at which it signs.
    pub expire_withdraw: Timestamp,
}

/// All keys of the exchange, and what it has published with them.
pub struct Keys {
    /// The exchange's configuration.
    pub config: ExchangeConfig,
    /// The master private key.
    pub master: EddsaPrivateKey,
    /// The master public key.
    pub master_pub: EddsaPublicKey,
    /// The private keys.
    pub modules: Arc<SecurityModules>,
    /// The denominations.
    pub denoms: Vec<Denom>,
    /// The wallet's record of the exchange, with accepted terms of service.
    pub exchange: Exchange,
    /// The rows of the key set.
    key_set: ChangeSet,
}

/// The currency of all runs.
///
/// # Panics
/// Never.
#[must_use]
pub fn currency() -> Currency {
    Currency::new("KUDOS").expect("a name")
}

/// Hundredths of the currency.
///
/// # Panics
/// If it is larger than the largest amount.
#[must_use]
pub fn cents(n: u64) -> Money {
    Money::from_units(u128::from(n) * 1_000_000).expect("a small amount")
}

/// The start of a run.
#[must_use]
pub const fn start() -> Timestamp {
    Timestamp::from_secs(START_S)
}

/// The payto URI of an account at the bank.
#[must_use]
pub fn payto(account: &str) -> String {
    format!("payto://{METHOD}/bank.test/{account}?receiver-name={account}")
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks_exact(2);
    digits
        .map(|pair| {
            let digits = std::str::from_utf8(pair).expect("hexadecimal digits");
            u8::from_str_radix(digits, 16).expect("hexadecimal digits")
        })
        .collect()
}

fn private_key(source: Source) -> DenomPrivateKey {
    match source {
        Source::Rsa(index) => {
            let (p, q) = PRIMES[index];
            let key = RsaPrivateKey::from_primes(&from_hex(p), &from_hex(q), &[1, 0, 1]);
            DenomPrivateKey::Rsa(key.expect("two primes"))
        }
        Source::Cs(number) => {
            let mut bytes = vec![0, 0, 0, 2];
            let scalar = hash::sha512(&[b'C', b'S', number]);
            bytes.extend_from_slice(&scalar.as_bytes()[..31]);
            bytes.push(0);
            DenomPrivateKey::from_bytes(&bytes).expect("a scalar")
        }
    }
}

fn coin(number: usize, spec: &Spec) -> CoinConfig {
    CoinConfig {
        section: format!("coin-{number:02}"),
        value: cents(spec.value),
        duration_withdraw: Duration::from_secs(spec.issue_s),
        duration_spend: Duration::from_days(spec.spend_days),
        duration_legal: Duration::from_days(300),
        fees: CoinFees {
            withdraw: cents(spec.fee_withdraw),
            deposit: cents(1),
            refresh: cents(spec.fee_refresh),
            refund: cents(1),
        },
        cipher: match spec.source {
            Source::Rsa(_) => CipherConfig::Rsa { bits: 1024 },
            Source::Cs(_) => CipherConfig::Cs,
        },
        age_restricted: false,
    }
}

fn config(specs: &[Spec], master_pub: EddsaPublicKey) -> ExchangeConfig {
    let url = format!("{BANK_URL}taler-wire-gateway/{EXCHANGE_ACCOUNT}/");
    let gateway = GatewayConfig { url, auth: GatewayAuth::None };
    // Nothing is read from or written to this directory.
    let mut config = ExchangeConfig::local(currency(), Path::new("/nowhere"), 0);
    // Each denomination has one key, for as long as it is issued.
    for module in [&mut config.module_rsa, &mut config.module_cs, &mut config.module_eddsa] {
        (module.lookahead_sign, module.overlap_duration) = (Duration::ZERO, Duration::ZERO);
    }
    ExchangeConfig {
        base_url: EXCHANGE_URL.to_owned(),
        master_public_key: Some(master_pub),
        standalone: None,
        dashboard: false,
        signkey_duration: Duration::from_days(800),
        idle_reserve_expiration: Duration::from_days(2),
        coins: specs.iter().enumerate().map(|(number, spec)| coin(number, spec)).collect(),
        ..config.with_account("exchange-account-1", &payto(EXCHANGE_ACCOUNT), gateway)
    }
}

/// The amount from which customers who withdraw must be identified.
///
/// # Panics
/// Never.
#[must_use]
pub fn limit() -> Money {
    cents(900)
}

/// The limit, and an officer who identifies customers by a form.
pub(crate) fn identification() -> KycConfig {
    let section = "kyc-provider-form".to_owned();
    let validity = Duration::from_days(365);
    let rule = KycRule {
        operation: KycOperation::Withdraw,
        checks: vec!["name".to_owned()],
        threshold: limit(),
        timeframe: validity,
    };
    let provider = KycProvider {
        section: section.clone(),
        cost: 1,
        user_type: KycUserType::Individual,
        checks: rule.checks.clone(),
    };
    let token_hash = hash::sha512(TOKEN.as_bytes());
    KycConfig {
        rules: KycRules { rules: vec![rule], providers: vec![provider] },
        providers: vec![KycProviderConfig {
            section,
            validity,
            logic: KycLogicConfig::Manual { post_url: None },
        }],
        officers: vec![KycOfficerConfig { name: "officer".to_owned(), token_hash }],
        ..KycConfig::default()
    }
}

/// Payments between people are free.
fn global_fees() -> GlobalFeeTerms {
    let free = Amount::zero(currency());
    GlobalFeeTerms {
        history_fee: free,
        account_fee: free,
        purse_fee: free,
        purse_timeout: Duration::from_days(1),
        history_expiration: Duration::from_days(100),
        purse_account_limit: 0,
    }
}

/// Signs and uploads everything that the exchange must publish, as an operator does.
async fn set_up(client: Client, master: EddsaPrivateKey) -> Result<(), OfflineError> {
    let future = offline::download(&client, EXCHANGE_URL).await?;
    let period = (start(), start().saturating_add(Duration::from_days(800)));
    let fee = cents(2).of(currency());
    for operation in [
        OfflineOperation::UploadSigs(offline::sign_keys(&master, &future)?),
        offline::enable_wire(&master, &payto(EXCHANGE_ACCOUNT), start())?,
        offline::wire_fee(&master, currency(), period, METHOD, fee, fee)?,
        offline::global_fee(&master, currency(), period, &global_fees())?,
    ] {
        offline::upload(&client, EXCHANGE_URL, &operation).await?;
    }
    Ok(())
}

/// The wallet's record of an exchange, with accepted terms of service.
fn wallet_record(service: &Service) -> Exchange {
    let mut update = ExchangeUpdate::new(EXCHANGE_URL.to_owned(), None);
    loop {
        let answer = service.answer(&update.next());
        let changes = update.receive(&answer, start()).expect("the exchange publishes valid keys");
        for change in changes.into_iter().flatten() {
            if let Change::Exchange(mut exchange) = change {
                exchange.terms.accepted = Some(exchange.terms.version.clone());
                return *exchange;
            }
        }
    }
}

fn copy<T: Table>(store: &Store, changes: &mut ChangeSet) {
    for found in store.all::<T>().expect("memory can be read") {
        changes.insert::<T>(&found.key, &found.row);
    }
}

impl Keys {
    /// The keys of the fault simulation.
    pub fn get() -> &'static Self {
        static KEYS: OnceLock<Keys> = OnceLock::new();
        KEYS.get_or_init(|| Self::make(&COINS))
    }

    /// The keys of the privacy game's town.
    pub fn town() -> &'static Self {
        static KEYS: OnceLock<Keys> = OnceLock::new();
        KEYS.get_or_init(|| Self::make(&TOWN_COINS))
    }

    /// A denomination by its hash.
    #[must_use]
    pub fn denom(&self, h: &HashCode) -> Option<&Denom> {
        self.denoms.iter().find(|denom| denom.h == *h)
    }

    /// A denomination by its number.
    #[must_use]
    pub fn by_serial(&self, serial: DenomSerial) -> Option<&Denom> {
        self.denoms.iter().find(|denom| denom.serial == serial)
    }

    /// Founds an exchange in memory, and keeps what it has published.
    fn make(specs: &[Spec]) -> Self {
        let master = EddsaPrivateKey::from_bytes([1; 32]);
        let (signer, own) = (EddsaPrivateKey::from_bytes([2; 32]), EddsaPrivateKey::from_bytes([4; 32]));
        let master_pub = master.public_key();
        let config = config(specs, master_pub);
        let secrets = specs.iter().map(|spec| private_key(spec.source)).collect();
        let modules = SecurityModules::in_memory(&config.keys_config(), &own, secrets, &signer, start());
        let modules = Arc::new(modules.expect("the keys are valid"));
        let store = Store::new(MemoryBackend::new());
        let service =
            Service::start(config.clone(), Arc::clone(&modules), store.clone(), start(), Random::new(0));
        let service = service.expect("the configuration is valid");
        service.serve(|client| set_up(client, master.clone())).expect("the key set is accepted");
        let exchange = wallet_record(&service);
        let mut key_set = ChangeSet::new();
        copy::<Counters>(&store, &mut key_set);
        copy::<Denominations>(&store, &mut key_set);
        copy::<SigningKeys>(&store, &mut key_set);
        copy::<WireAccounts>(&store, &mut key_set);
        copy::<WireFees>(&store, &mut key_set);
        copy::<GlobalFees>(&store, &mut key_set);
        let denoms = store.all::<Denominations>().expect("memory can be read").into_iter();
        let denoms = denoms.map(|found| Denom {
            serial: found.key.serial,
            h: found.row.h_denom_pub,
            value: found.row.value,
            expire_withdraw: found.row.expire_withdraw,
        });
        Self { denoms: denoms.collect(), config, master, master_pub, modules, exchange, key_set }
    }

    /// Returns whether the key set is in a store.
    ///
    /// # Errors
    /// When the store fails.
    pub fn are_installed(store: &Store) -> Result<bool, StoreError> {
        Ok(store.get::<Denominations>(&DenomKey { serial: DenomSerial(1) })?.is_some())
    }

    /// Writes the key set into an empty store.
    ///
    /// # Errors
    /// When the store fails.
    pub fn install(&self, store: &Store) -> Result<(), StoreError> {
        store.commit(&self.key_set).map(|_| ())
    }
}
