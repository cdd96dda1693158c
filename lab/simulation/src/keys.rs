//! The exchange's keys and published data, which are the same in all runs and created once per process.
//! Private keys are constants, so that a seed gives the same bytes everywhere.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use batzen_crypto::{
    DenomPrivateKey, DenomPublicKey, EddsaPrivateKey, EddsaPublicKey, EddsaSignature, HashCode,
    RsaPrivateKey, hash,
};
use batzen_protocol::api::exchange::{
    Denomination, DenominationGroup, GroupCipher, GroupMember, KeysResponse, SignKey, WireAccount, WireFee,
    WireResponse,
};
use batzen_protocol::denominations::DenominationTerms;
use batzen_protocol::signatures::{ExchangeKeySet, SignedMessage};
use batzen_protocol::{Currency, Duration, Money, Timestamp};
use batzen_store::{ChangeSet, Store};
use batzen_tables::exchange::{
    DenomKey, DenomRow, DenomSerial, Denominations, WireFeeKey, WireFeeRow, WireFees,
};
use batzen_wallet::core::Change;
use batzen_wallet::core::exchange::{Exchange, ExchangeUpdate};
use batzen_wallet::core::http::HttpResponse;

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
/// Time that coins of the first generation can be withdrawn.
pub const FIRST_GENERATION: Duration = Duration::from_secs(FIRST_GENERATION_S);
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

/// The denominations of the fault simulation.
const COINS: [Spec; 7] = [
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

/// A denomination with its private key.
pub struct Denom {
    /// Its number in the exchange's store.
    pub serial: DenomSerial,
    /// The private key.
    pub key: DenomPrivateKey,
    /// The public key.
    pub public: DenomPublicKey,
    /// Its hash.
    pub h: HashCode,
    /// Its terms.
    pub terms: DenominationTerms,
    master_sig: EddsaSignature,
}

/// All keys of the exchange.
pub struct Keys {
    /// The master public key.
    pub master_pub: EddsaPublicKey,
    /// The online signing key.
    pub signer: EddsaPrivateKey,
    /// The denominations.
    pub denoms: Vec<Denom>,
    /// The wallet's record of the exchange, with accepted terms of service.
    pub exchange: Exchange,
    wire_fee: WireFee,
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

    fn make(specs: &[Spec]) -> Self {
        let master = EddsaPrivateKey::from_bytes([1; 32]);
        let signer = EddsaPrivateKey::from_bytes([2; 32]);
        let days = |n| start().saturating_add(Duration::from_days(n));
        let mut denoms = Vec::new();
        for (spec, serial) in specs.iter().zip(1..) {
            let key = private_key(spec.source);
            let public = key.public(0);
            let h = public.h_denom_pub();
            let fee = cents(1).of(currency());
            let terms = DenominationTerms {
                value: cents(spec.value).of(currency()),
                fee_withdraw: cents(spec.fee_withdraw).of(currency()),
                fee_deposit: fee,
                fee_refresh: cents(spec.fee_refresh).of(currency()),
                fee_refund: fee,
                stamp_start: start(),
                stamp_expire_withdraw: start().saturating_add(Duration::from_secs(spec.issue_s)),
                stamp_expire_deposit: days(spec.spend_days),
                stamp_expire_legal: days(spec.spend_days + 300),
            };
            let master_sig = terms.validity(master.public_key(), h).sign(&master);
            denoms.push(Denom { serial: DenomSerial(serial), key, public, h, terms, master_sig });
        }
        let mut wire_fee = WireFee {
            wire_fee: cents(2).of(currency()),
            closing_fee: cents(2).of(currency()),
            start_date: start(),
            end_date: days(400),
            sig: EddsaSignature::ZERO,
        };
        wire_fee.sig = wire_fee.message(METHOD).sign(&master);
        let answers = [
            json(&keys_response(&master, &signer, &denoms)),
            json(&wire_response(&master, &wire_fee)),
            HttpResponse {
                status: 200,
                etag: Some("tos-1".to_owned()),
                content_type: Some("text/plain".to_owned()),
                body: b"Be nice.".to_vec(),
                ..HttpResponse::default()
            },
        ];
        let mut update = ExchangeUpdate::new(EXCHANGE_URL.to_owned(), None);
        let mut exchange = None;
        for answer in answers {
            let changes = update.receive(&answer, start()).expect("the exchange publishes valid keys");
            for change in changes.into_iter().flatten() {
                if let Change::Exchange(known) = change {
                    exchange = Some(*known);
                }
            }
        }
        let mut exchange = exchange.expect("the update is complete");
        exchange.terms.accepted = Some(exchange.terms.version.clone());
        Self { master_pub: master.public_key(), signer, denoms, exchange, wire_fee }
    }

    /// Writes denominations and fees into an empty store.
    ///
    /// # Errors
    /// When the store fails.
    pub fn install(&self, store: &Store) -> Result<(), batzen_store::StoreError> {
        let mut changes = ChangeSet::new();
        for denom in &self.denoms {
            let terms = &denom.terms;
            let row = DenomRow {
                h_denom_pub: denom.h,
                cipher: denom.public.cipher(),
                public_key: denom.public.key_bytes().to_vec(),
                age_mask: 0,
                value: terms.value.money,
                fee_withdraw: terms.fee_withdraw.money,
                fee_deposit: terms.fee_deposit.money,
                fee_refresh: terms.fee_refresh.money,
                fee_refund: terms.fee_refund.money,
                start: terms.stamp_start,
                expire_withdraw: terms.stamp_expire_withdraw,
                expire_deposit: terms.stamp_expire_deposit,
                expire_legal: terms.stamp_expire_legal,
                master_sig: denom.master_sig,
            };
            changes.insert::<Denominations>(&DenomKey { serial: denom.serial }, &row);
        }
        changes.insert::<WireFees>(
            &WireFeeKey { method: METHOD.to_owned(), start: self.wire_fee.start_date },
            &WireFeeRow {
                end: self.wire_fee.end_date,
                wire_fee: self.wire_fee.wire_fee.money,
                closing_fee: self.wire_fee.closing_fee.money,
                master_sig: self.wire_fee.sig,
            },
        );
        store.commit(&changes).map(|_| ())
    }
}

fn json(body: &impl serde::Serialize) -> HttpResponse {
    let body = serde_json::to_vec(body).expect("protocol bodies have a JSON form");
    HttpResponse { status: 200, body, ..HttpResponse::default() }
}

fn keys_response(master: &EddsaPrivateKey, signer: &EddsaPrivateKey, all: &[Denom]) -> KeysResponse {
    let mut flat = Vec::new();
    let mut xor = [0_u8; 64];
    let mut groups = Vec::new();
    for denom in all {
        flat.extend_from_slice(denom.h.as_bytes());
        for (sum, byte) in xor.iter_mut().zip(denom.h.as_bytes()) {
            *sum ^= byte;
        }
        let (cipher, rsa_pub, cs_pub) = match &denom.public.key {
            batzen_crypto::DenomKey::Rsa(key) => (GroupCipher::Rsa, Some(key.encode().to_vec().into()), None),
            batzen_crypto::DenomKey::Cs(key) => (GroupCipher::Cs, None, Some(*key.as_public_key())),
        };
        groups.push(DenominationGroup {
            cipher,
            value: denom.terms.value,
            fee_withdraw: denom.terms.fee_withdraw,
            fee_deposit: denom.terms.fee_deposit,
            fee_refresh: denom.terms.fee_refresh,
            fee_refund: denom.terms.fee_refund,
            age_mask: None,
            hash: denom.h,
            denoms: vec![GroupMember {
                rsa_pub,
                cs_pub,
                stamp_start: denom.terms.stamp_start,
                stamp_expire_withdraw: denom.terms.stamp_expire_withdraw,
                stamp_expire_deposit: denom.terms.stamp_expire_deposit,
                stamp_expire_legal: denom.terms.stamp_expire_legal,
                master_sig: denom.master_sig,
            }],
        });
    }
    let denoms = all
        .iter()
        .map(|denom| Denomination {
            denom_pub: denom.public.clone(),
            value: denom.terms.value,
            fee_withdraw: denom.terms.fee_withdraw,
            fee_deposit: denom.terms.fee_deposit,
            fee_refresh: denom.terms.fee_refresh,
            fee_refund: denom.terms.fee_refund,
            stamp_start: denom.terms.stamp_start,
            stamp_expire_withdraw: denom.terms.stamp_expire_withdraw,
            stamp_expire_deposit: denom.terms.stamp_expire_deposit,
            stamp_expire_legal: denom.terms.stamp_expire_legal,
            master_sig: denom.master_sig,
        })
        .collect();
    let list_issue_date = start();
    let key_set = |hc| ExchangeKeySet { list_issue_date, hc }.sign(signer);
    let mut signkey = SignKey {
        key: signer.public_key(),
        stamp_start: start(),
        stamp_expire: start().saturating_add(Duration::from_days(300)),
        stamp_end: start().saturating_add(Duration::from_days(400)),
        master_sig: EddsaSignature::ZERO,
    };
    signkey.master_sig = signkey.validity().sign(master);
    KeysResponse {
        version: "14:0:2".to_owned(),
        base_url: EXCHANGE_URL.to_owned(),
        currency: currency().to_string(),
        asset_type: "fiat".to_owned(),
        master_public_key: master.public_key(),
        reserve_closing_delay: Duration::from_days(28),
        signkeys: vec![signkey],
        recoup: Some(Vec::new()),
        denoms,
        denominations: groups,
        auditors: Vec::new(),
        global_fees: Vec::new(),
        list_issue_date,
        eddsa_pub: signer.public_key(),
        eddsa_sig: key_set(hash::sha512(&flat)),
        denominations_sig: key_set(HashCode::from_bytes(xor)),
        wallet_balance_limit_without_kyc: None,
        extensions: None,
        extensions_sig: None,
    }
}

fn wire_response(master: &EddsaPrivateKey, fee: &WireFee) -> WireResponse {
    let mut account = WireAccount { payto_uri: payto(EXCHANGE_ACCOUNT), master_sig: EddsaSignature::ZERO };
    account.master_sig = account.message().sign(master);
    WireResponse {
        accounts: vec![account],
        fees: BTreeMap::from([(METHOD.to_owned(), vec![fee.clone()])]),
        master_public_key: master.public_key(),
    }
}
