//! Properties of all values: formatted values can be parsed again, and arithmetic is exact.

use batzen_crypto::cs::{CsBlindSignature, CsSignature};
use batzen_crypto::{
    AgePublicKey, BlindedDenomSignature, BlindedPlanchet, BlindingSecret, CsNonce, CsRPub, CsScalar,
    DenomSignature, EcdhePrivateKey, EcdhePublicKey, EddsaPublicKey, EddsaSignature, ExchangeWithdrawValues,
    HashCode, RefreshMasterSecret, ShortHash, WireSalt,
};
use batzen_protocol::api::exchange::*;
use batzen_protocol::{
    Amount, AmountError, Currency, Duration, ErrorDetail, Money, PaytoUri, TalerUri, Timestamp, canonical,
    parse_body,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

fn money() -> impl Strategy<Value = Money> {
    // Small numbers, large numbers, and those near the limits.
    prop_oneof![
        (0..1000u64, 0..100_000_000u32),
        (0..=1u64 << 52, 0..100_000_000u32),
        ((1u64 << 52) - 2..=1u64 << 52, prop_oneof![Just(0), Just(99_999_999u32)]),
    ]
    .prop_map(|(value, fraction)| Money::new(value, fraction).unwrap())
}

fn amount() -> impl Strategy<Value = Amount> {
    ("[A-Z]{1,11}", money()).prop_map(|(currency, money)| money.of(Currency::new(&currency).unwrap()))
}

fn time() -> impl Strategy<Value = Timestamp> {
    prop_oneof![any::<u32>().prop_map(u64::from), any::<u64>(), Just(u64::MAX)].prop_map(Timestamp::from_secs)
}

fn duration() -> impl Strategy<Value = Duration> {
    prop_oneof![0..1u64 << 53, Just(u64::MAX)].prop_map(Duration::from_micros)
}

macro_rules! bytes {
    ($($name:ident: $type:ty),* $(,)?) => {$(
        fn $name() -> impl Strategy<Value = $type> {
            any::<[u8; <$type>::SIZE]>().prop_map(<$type>::from_bytes)
        }
    )*};
}

bytes! {
    hash: HashCode, short_hash: ShortHash, key: EddsaPublicKey, signature: EddsaSignature, transfer_pub: EcdhePublicKey,
    transfer_priv: EcdhePrivateKey, blinding: BlindingSecret, nonce: CsNonce, point: CsRPub, scalar: CsScalar,
    salt: WireSalt, rms: RefreshMasterSecret, age_key: AgePublicKey,
}

fn coin_signature() -> impl Strategy<Value = DenomSignature> {
    prop_oneof![
        vec(any::<u8>(), 0..300).prop_map(DenomSignature::Rsa),
        (point(), scalar()).prop_map(|(r, s)| DenomSignature::Cs(CsSignature { r, s })),
    ]
}

fn blind_signature() -> impl Strategy<Value = BlindedDenomSignature> {
    prop_oneof![
        vec(any::<u8>(), 0..300).prop_map(BlindedDenomSignature::Rsa),
        (0..2u8, scalar()).prop_map(|(b, s)| BlindedDenomSignature::Cs(CsBlindSignature { b, s })),
    ]
}

fn planchet() -> impl Strategy<Value = BlindedPlanchet> {
    prop_oneof![
        vec(any::<u8>(), 0..300).prop_map(|blinded| BlindedPlanchet::Rsa { blinded }),
        (nonce(), scalar(), scalar()).prop_map(|(nonce, c0, c1)| BlindedPlanchet::Cs { nonce, c0, c1 }),
    ]
}

fn withdraw_values() -> impl Strategy<Value = ExchangeWithdrawValues> {
    prop_oneof![
        Just(ExchangeWithdrawValues::Rsa),
        (point(), point()).prop_map(|(r0, r1)| ExchangeWithdrawValues::Cs { r0, r1 }),
    ]
}

/// A JSON value whose numbers are integers.
fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-(1i64 << 53) + 1..1i64 << 53).prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(".{0,6}", inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn round_trip<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T) {
    let text = serde_json::to_vec(value).unwrap();
    assert_eq!(&parse_body::<T>(&text).unwrap(), value);
    // Through the pretty form, with members in another order and additional ones.
    let mut object = serde_json::to_value(value).unwrap();
    object.as_object_mut().unwrap().insert("unknown".into(), serde_json::json!({"a": [1, {"b": null}]}));
    let pretty = serde_json::to_vec_pretty(&object).unwrap();
    assert_eq!(&parse_body::<T>(&pretty).unwrap(), value);
    // An absent member may also be null.
    assert!(object.as_object().unwrap().values().all(|member| !member.is_null()));
}

proptest! {
    #[test]
    fn amounts_survive_writing(amount in amount()) {
        prop_assert_eq!(Amount::parse(&amount.to_string()), Ok(amount));
        prop_assert_eq!(Amount::from_nbo(&amount.to_nbo()), Ok(amount));
        prop_assert_eq!(Money::from_compact(amount.money.to_compact()), Ok(amount.money));
        let json = serde_json::to_string(&amount).unwrap();
        prop_assert_eq!(serde_json::from_str::<Amount>(&json).unwrap(), amount);
    }

    #[test]
    fn arithmetic_is_exact(a in money(), b in money(), n in 1..1000u64) {
        let sum = a.checked_add(b);
        prop_assert_eq!(sum.is_ok(), a.units() + b.units() <= Money::MAX.units());
        if let Ok(sum) = sum {
            prop_assert_eq!(sum.checked_sub(b), Ok(a));
            prop_assert_eq!(b.checked_add(a), Ok(sum));
        }
        match a.checked_sub(b) {
            Ok(rest) => prop_assert_eq!(rest.checked_add(b), Ok(a)),
            Err(error) => prop_assert!(error == AmountError::Negative && a < b),
        }
        let part = a.checked_div(n).unwrap();
        let back = part.checked_mul(n).unwrap();
        prop_assert!(back <= a && a.units() - back.units() < u128::from(n));
        prop_assert_eq!(a.to_compact().cmp(&b.to_compact()), a.cmp(&b));
    }

    #[test]
    fn rounding_goes_down_to_a_multiple(a in money(), step in 1..100_000_000u32) {
        let unit = Money::new(0, step).unwrap();
        let rounded = a.round_down(unit).unwrap();
        prop_assert!(rounded <= a && rounded.fraction() % step == 0);
        prop_assert_eq!(rounded.round_down(unit), Ok(rounded));
        prop_assert_eq!(rounded.value(), a.value());
    }

    #[test]
    fn times_survive_writing(time in time(), duration in duration()) {
        let json = serde_json::to_string(&time).unwrap();
        prop_assert_eq!(serde_json::from_str::<Timestamp>(&json).unwrap(), time);
        prop_assert_eq!(Timestamp::from_nbo(time.to_nbo()), time);
        let json = serde_json::to_string(&duration).unwrap();
        prop_assert_eq!(serde_json::from_str::<Duration>(&json).unwrap(), duration);
        prop_assert_eq!(Duration::from_nbo(duration.to_nbo()), duration);
        let later = time.saturating_add(duration);
        prop_assert!(later >= time || duration.is_zero());
        prop_assert!(later.is_never() || later.as_micros() % 1_000_000 == 0);
        if !time.is_never() && !later.is_never() {
            let since = later.saturating_since(time);
            prop_assert!(since <= duration && duration.as_micros() - since.as_micros() < 1_000_000);
        }
    }

    #[test]
    fn payto_uris_survive(host in "[a-z0-9.-]{1,12}(:[0-9]{1,4})?", account in "[a-zA-Z0-9.,-]{1,12}", name in option::of("\\PC{1,12}")) {
        let uri = PaytoUri::x_taler_bank(&host, &account, name.as_deref()).unwrap();
        prop_assert_eq!(uri.method(), "x-taler-bank");
        prop_assert_eq!(uri.host(), host.as_str());
        prop_assert_eq!(uri.account(), account.as_str());
        prop_assert_eq!(uri.receiver_name().map(std::borrow::Cow::into_owned), name);
        prop_assert_eq!(PaytoUri::parse(uri.as_str()), Ok(uri.clone()));
        let json = serde_json::to_string(&uri).unwrap();
        prop_assert_eq!(serde_json::from_str::<PaytoUri>(&json).unwrap(), uri);
    }

    #[test]
    fn reserve_uris_survive(https in any::<bool>(), path in "[a-z0-9.-]{1,10}(:[0-9]{2,4})?(/[a-z0-9]{1,5}){0,2}", key in key()) {
        let base_url = format!("{}://{path}/", if https { "https" } else { "http" });
        let uri = PaytoUri::reserve(&base_url, &key).unwrap();
        prop_assert_eq!(uri.to_reserve(), Ok((base_url, key)));
    }

    #[test]
    fn taler_uris_survive(https in any::<bool>(), path in "[a-z0-9-]{1,10}(:[1-9][0-9]{1,3})?(/[a-z0-9]{1,5}){0,2}", a in "[A-Za-z0-9-]{1,9}", b in "[A-Za-z0-9-]{0,9}", token in option::of("[A-Z0-9]{1,9}")) {
        let url = format!("{}://{path}/", if https { "https" } else { "http" });
        for uri in [
            TalerUri::Withdraw { bank_url: url.clone(), operation_id: a.clone() },
            TalerUri::Pay { merchant_url: url.clone(), order_id: a.clone(), session_id: b.clone(), claim_token: token.clone(), nonce_priv: token.clone() },
            TalerUri::Refund { merchant_url: url.clone(), order_id: a.clone() },
            TalerUri::PayPush { exchange_url: url.clone(), contract_priv: a.clone() },
        ] {
            prop_assert_eq!(TalerUri::parse(&uri.to_string()), Ok(uri));
        }
    }

    #[test]
    fn canonical_text_is_a_fixed_point(value in json()) {
        let text = canonical::to_canonical(&value).unwrap();
        let again = canonical::parse(text.as_bytes()).unwrap();
        prop_assert_eq!(&again, &value);
        prop_assert_eq!(canonical::to_canonical(&again).unwrap(), text);
    }

    #[test]
    fn forgetting_never_changes_the_hash(secret in json(), open in json(), salt in "[A-Z0-9]{1,20}") {
        let mut contract = serde_json::json!({"secret": secret, "open": open, "$forgettable": {"secret": salt}});
        let Ok(hash) = canonical::contract_hash(&contract) else { return Ok(()) };
        let text = canonical::to_canonical(&contract).unwrap();
        prop_assert_eq!(canonical::canonical_contract(&contract), Ok((text, hash)));
        canonical::forget(&mut contract, "secret").unwrap();
        prop_assert_eq!(canonical::contract_hash(&contract), Ok(hash));
    }

    #[test]
    fn withdrawals_survive(reserve_sig in signature(), denom_pub_hash in hash(), coin_ev in planchet(), blind in blind_signature()) {
        let request = WithdrawRequest { reserve_sig, denom_pub_hash, coin_ev };
        round_trip(&request);
        round_trip(&BatchWithdrawRequest { planchets: vec![request.clone(), request] });
        round_trip(&BlindSignatures { ev_sigs: vec![BlindSignature { ev_sig: blind }] });
    }

    #[test]
    fn deposits_survive(
        (contribution, timestamp, wire_transfer_deadline) in (amount(), time(), time()),
        (denom_pub_hash, ub_sig, merchant_pub, h_contract_terms) in (hash(), coin_signature(), key(), hash()),
        (h_age_commitment, coin_sig, refund_deadline) in (option::of(short_hash()), signature(), option::of(time())),
        (merchant_payto_uri, wire_salt) in (".{0,40}", salt()),
    ) {
        let policy = h_age_commitment.map(|_| serde_json::json!({"type": "none"}));
        round_trip(&DepositRequest {
            merchant_payto_uri, wire_salt, contribution, denom_pub_hash, ub_sig, merchant_pub, h_contract_terms,
            h_age_commitment, coin_sig, timestamp, refund_deadline, wire_transfer_deadline, policy,
        });
    }

    #[test]
    fn refreshes_survive(
        (denom_sig, denom_pub_hash, age_commitment_hash) in (coin_signature(), hash(), option::of(short_hash())),
        (confirm_sig, value_with_fee, rc, rms) in (signature(), amount(), hash(), option::of(rms())),
        (transfer_pub, transfer_privs, link_sigs) in (transfer_pub(), vec(transfer_priv(), 0..3), vec(signature(), 0..3)),
        (coin_evs, old_age_commitment) in (vec(planchet(), 0..3), option::of(vec(age_key(), 0..8))),
    ) {
        round_trip(&MeltRequest {
            denom_sig, denom_pub_hash, age_commitment_hash, confirm_sig, value_with_fee, rc, rms: rms.clone(), coin_pub: None,
        });
        round_trip(&RevealRequest {
            transfer_pub, transfer_privs, link_sigs, coin_evs, new_denoms_h: vec![rc], old_age_commitment, rms,
        });
    }

    #[test]
    fn recoups_survive(
        (denom_pub_hash, denom_sig, ewv, coin_sig) in (hash(), coin_signature(), withdraw_values(), signature()),
        (coin_blind_key_secret, h_age_commitment, cs_nonce) in (blinding(), option::of(short_hash()), option::of(nonce())),
    ) {
        round_trip(&RecoupRequest {
            denom_pub_hash, denom_sig, ewv, coin_sig, coin_blind_key_secret, h_age_commitment, cs_nonce,
        });
    }

    #[test]
    fn histories_survive(amount in amount(), timestamp in time(), key in key(), signature in signature(), hash in hash(), row in any::<u64>()) {
        round_trip(&ReserveStatus {
            balance: amount,
            history: vec![
                ReserveHistoryItem::Credit(ReserveCredit { timestamp, sender_account_url: "payto://x/y".into(), wire_reference: row, amount }),
                ReserveHistoryItem::Withdraw(ReserveWithdraw { reserve_sig: signature, h_coin_envelope: hash, h_denom_pub: hash, withdraw_fee: amount, amount }),
                ReserveHistoryItem::Recoup(ReserveRecoup { exchange_pub: key, exchange_sig: signature, timestamp, amount, coin_pub: key }),
            ],
        });
    }
}

#[test]
fn null_is_absent() {
    let zeros = |n: usize| "0".repeat(n);
    let body = format!(
        r#"{{"denom_sig":{{"cipher":"RSA","rsa_signature":"","cs_signature_r":null}},"denom_pub_hash":"{h}",
            "age_commitment_hash":null,"confirm_sig":"{h}","value_with_fee":"EUR:1","rc":"{h}","rms":null}}"#,
        h = zeros(103)
    );
    let request: MeltRequest = parse_body(body.as_bytes()).unwrap();
    assert!(request.age_commitment_hash.is_none() && request.rms.is_none());
    assert!(!serde_json::to_string(&request).unwrap().contains("null"));
}

#[test]
fn offline_documents_are_arrays_of_operations() {
    use batzen_protocol::api::offline::OfflineOperation;

    let text = include_str!("../../../../../fuzz/corpus/body_offline/00.json");
    let operations: Vec<OfflineOperation> = parse_body(text.as_bytes()).unwrap();
    assert_eq!(operations.len(), 3);
    assert!(matches!(&operations[0], OfflineOperation::Setup(setup) if setup.exchange_offline_pub.is_zero()));
    assert_eq!(serde_json::to_value(&operations).unwrap(), serde_json::from_str::<Value>(text).unwrap());
    let unknown = br#"[{"operation":"exchange-unknown-9","arguments":{}}]"#;
    assert!(parse_body::<Vec<OfflineOperation>>(unknown).is_err());
}

#[test]
fn fractions_in_members_of_an_error_are_kept_exactly() {
    // With imprecise parsing, this number would change in a round trip.
    let body = br#"{"code":1151,"hint":"","t_s":179519199999999999999999999999999999999999999999999999999999999999999999999999999999999999844}"#;
    let error: ErrorDetail = parse_body(body).unwrap();
    let again: ErrorDetail = parse_body(&serde_json::to_vec(&error).unwrap()).unwrap();
    assert_eq!(again, error);
}
