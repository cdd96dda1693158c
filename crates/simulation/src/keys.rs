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
/// How long coins of the first generation can be withdrawn.
pub const FIRST_GENERATION: Duration = Duration::from_secs(2 * 3600);

/// Primes of RSA-1024 keys that are only used here.
const PRIMES: [(&str, &str); 3] = [
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
];

/// Key, value in cents, withdraw fee in cents, and whether it belongs to the first generation.
const COINS: [(Source, u64, u64, bool); 7] = [
    (Source::Rsa(0), 100, 0, true),
    (Source::Cs(1), 200, 0, true),
    (Source::Rsa(1), 400, 1, false),
    (Source::Rsa(2), 100, 1, false),
    (Source::Cs(2), 200, 1, false),
    (Source::Cs(3), 50, 1, false),
    (Source::Cs(4), 10, 1, false),
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
    /// The keys of this process.
    pub fn get() -> &'static Self {
        static KEYS: OnceLock<Keys> = OnceLock::new();
        KEYS.get_or_init(Self::make)
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

    fn make() -> Self {
        let master = EddsaPrivateKey::from_bytes([1; 32]);
        let signer = EddsaPrivateKey::from_bytes([2; 32]);
        let days = |n| start().saturating_add(Duration::from_days(n));
        let mut denoms = Vec::new();
        for ((source, value, fee_withdraw, is_first), serial) in COINS.into_iter().zip(1..) {
            let key = private_key(source);
            let public = key.public(0);
            let h = public.h_denom_pub();
            let fee = cents(1).of(currency());
            let terms = DenominationTerms {
                value: cents(value).of(currency()),
                fee_withdraw: cents(fee_withdraw).of(currency()),
                fee_deposit: fee,
                fee_refresh: fee,
                fee_refund: fee,
                stamp_start: start(),
                stamp_expire_withdraw: if is_first {
                    start().saturating_add(FIRST_GENERATION)
                } else {
                    days(30)
                },
                stamp_expire_deposit: days(100),
                stamp_expire_legal: days(400),
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
