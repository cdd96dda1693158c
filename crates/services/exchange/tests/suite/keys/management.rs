//! `/management/…` and `/auditors/…`: the happy path and every error.

use batzen_crypto::{EddsaPrivateKey, EddsaSignature, HashCode, Wtid};
use batzen_exchange::config::AgeRestrictionConfig;
use batzen_exchange::rules::{Command, Management, ReserveHistory};
use batzen_protocol::api::exchange::{
    AuditorAddRequest, AuditorDisableRequest, DrainRequest, ExtensionsRequest, GlobalFeeRequest,
    ManagementKeysRequest, RevokeRequest, WireAddRequest, WireDisableRequest, WireFeeRequest, WireResponse,
};
use batzen_protocol::limits::KEY_SIGNATURES_MAX;
use batzen_protocol::payto::h_payto;
use batzen_protocol::signatures::{
    MasterAddAuditor, MasterAddWire, MasterDelAuditor, MasterDelWire, MasterDenominationKeyRevoked,
    MasterDrainProfit, MasterExtension, MasterGlobalFees, MasterSigningKeyRevoked, MasterWireDetails,
    MasterWireFees, SignedMessage,
};
use batzen_protocol::{Amount, Duration, Timestamp, canonical, hash_text};
use batzen_tables::exchange::{AccountId, Drains};
use serde_json::{Value, json};

use crate::keys::caching::check_keys;
use crate::keys::support::{PAYTO, START_SECS, Site, code, operated, with, without};
use crate::running::{book, credit};

const BAD_SIG: EddsaSignature = EddsaSignature::from_bytes([0x42; 64]);

fn bad() -> Value {
    json!(BAD_SIG.to_string())
}

fn at(offset: u64) -> Timestamp {
    Timestamp::from_secs(START_SECS + offset)
}

fn amount(text: &str) -> Amount {
    Amount::parse(text).unwrap()
}

#[tokio::test]
async fn keys_come_into_use_all_or_nothing() {
    let master = EddsaPrivateKey::generate();
    let site = Site::operated(&master).await;
    let future = site.future_keys().await;
    assert_eq!(future.master_pub, master.public_key());
    assert!(!future.denom_secmod_public_key.is_zero() && !future.denom_secmod_cs_public_key.is_zero());
    let request = site.key_signatures(&master).await;
    assert!(request.denom_sigs.len() >= 2 && !request.signkey_sigs.is_empty());

    let unknown = HashCode::random();
    for (change, status, code) in [
        (with(&request, "denom_sigs", json!({})), 400, 22),
        (without(&request, "signkey_sigs"), 400, 22),
        (with(&request, "denom_sigs", json!([{ "h_denom_pub": unknown, "master_sig": BAD_SIG }])), 404, 1005),
        (
            with(
                &request,
                "signkey_sigs",
                json!([{ "exchange_pub": master.public_key(), "master_sig": BAD_SIG }]),
            ),
            404,
            1807,
        ),
    ] {
        assert_eq!(site.post("management/keys", &change).await, (status, code), "{change}");
    }
    let mut wrong = request.clone();
    wrong.denom_sigs[1].master_sig = BAD_SIG;
    assert_eq!(site.post("management/keys", &wrong).await, (403, 1814));
    let mut wrong = request.clone();
    wrong.signkey_sigs[0].master_sig = BAD_SIG;
    assert_eq!(site.post("management/keys", &wrong).await, (403, 1815));
    let not_json =
        site.client.post(site.url("management/keys")).body("application/json", "{").send().await.unwrap();
    assert_eq!((not_json.status, code(&not_json)), (400, 22));
    assert_eq!(site.future_keys().await, future, "a refused request has no effect");

    assert_eq!(site.post("management/keys", &request).await, (204, 0));
    let keys = site.keys().await;
    check_keys(&keys);
    assert_eq!(keys.denoms.len(), request.denom_sigs.len());
    assert_eq!(keys.signkeys.len(), request.signkey_sigs.len());
    let left = site.future_keys().await;
    assert!(left.future_denoms.is_empty() && left.future_signkeys.is_empty());
    // The same request again: verified and skipped.
    assert_eq!(site.post("management/keys", &request).await, (204, 0));
    let mut wrong = request.clone();
    wrong.denom_sigs[0].master_sig = BAD_SIG;
    assert_eq!(site.post("management/keys", &wrong).await, (403, 1814));
    assert_eq!(site.keys().await, keys);
    let metrics = site.running.app().keys();
    assert_eq!(metrics.denoms().len(), keys.denoms.len());
    site.stop().await;
}

/// Master signatures on current keys are public, so anybody can repeat them, as many as fit in a body. Only
/// signatures that are not stored yet are checked, each of them once.
#[tokio::test]
async fn repeated_signatures_cost_nothing() {
    let master = EddsaPrivateKey::generate();
    let site = Site::operated(&master).await;
    let request = site.key_signatures(&master).await;
    let checks = || site.running.app().core.metrics.verifications.eddsa.get();
    let keys = (request.denom_sigs.len() + request.signkey_sigs.len()) as u64;
    let repeated = |request: &ManagementKeysRequest, times: usize| ManagementKeysRequest {
        denom_sigs: request
            .denom_sigs
            .iter()
            .cloned()
            .cycle()
            .take(request.denom_sigs.len() * times)
            .collect(),
        signkey_sigs: request.signkey_sigs.clone(),
    };

    // Two signatures for one key: at least one must be wrong, so neither is checked.
    let mut ambiguous = repeated(&request, 2);
    ambiguous.denom_sigs[0].master_sig = BAD_SIG;
    let before = checks();
    assert_eq!(site.post("management/keys", &ambiguous).await, (400, 22));
    assert_eq!(checks(), before);

    assert_eq!(site.post("management/keys", &repeated(&request, 50)).await, (204, 0));
    assert_eq!(checks(), before + keys, "one check for each key");
    assert_eq!(site.keys().await.denoms.len(), request.denom_sigs.len());
    assert_eq!(site.post("management/keys", &repeated(&request, 50)).await, (204, 0));
    assert_eq!(checks(), before + keys, "stored signatures are not checked again");

    let too_many = repeated(&request, KEY_SIGNATURES_MAX / request.denom_sigs.len() + 1);
    assert_eq!(site.post("management/keys", &too_many).await, (400, 22));
    site.stop().await;
}

#[tokio::test]
async fn a_denomination_is_revoked_and_replaced() {
    let master = EddsaPrivateKey::generate();
    let site = Site::signed(&master).await;
    let before = site.keys().await;
    let victim = &before.denoms[0];
    let h_denom_pub = victim.denom_pub.h_denom_pub();
    let path = format!("management/denominations/{h_denom_pub}/revoke");
    let revoke = RevokeRequest { master_sig: MasterDenominationKeyRevoked { h_denom_pub }.sign(&master) };
    assert_eq!(site.post(&path, &with(&revoke, "master_sig", bad())).await, (403, 1804));
    assert_eq!(site.post("management/denominations/ABC/revoke", &revoke).await, (400, 26));
    let unknown = HashCode::random();
    let other =
        RevokeRequest { master_sig: MasterDenominationKeyRevoked { h_denom_pub: unknown }.sign(&master) };
    assert_eq!(site.post(&format!("management/denominations/{unknown}/revoke"), &other).await, (404, 1005));
    for _ in 0..2 {
        assert_eq!(site.post(&path, &revoke).await, (204, 0));
        let after = site.keys().await;
        check_keys(&after);
        assert_eq!(after.denoms.len(), before.denoms.len() - 1);
        assert_eq!(after.recoup.unwrap()[0].h_denom_pub, h_denom_pub);
        let state = site.running.app().keys();
        let denom = state.find_denomination(&h_denom_pub).unwrap();
        assert!(denom.revoked && !denom.can_sign());
    }
    site.settle().await;
    let future = site.future_keys().await;
    assert_eq!(future.future_denoms.len(), 1, "a replacement waits for its signature");
    let replacement = &future.future_denoms[0];
    assert_eq!(replacement.stamp_start, victim.stamp_start);
    assert_eq!(replacement.value, victim.value);
    assert_ne!(replacement.denom_pub.h_denom_pub(), h_denom_pub);

    // A key that was never in use can be revoked as well: it is replaced at once.
    let h_unused = replacement.denom_pub.h_denom_pub();
    let revoke =
        RevokeRequest { master_sig: MasterDenominationKeyRevoked { h_denom_pub: h_unused }.sign(&master) };
    assert_eq!(site.post(&format!("management/denominations/{h_unused}/revoke"), &revoke).await, (204, 0));
    let future = site.future_keys().await;
    assert_eq!(future.future_denoms.len(), 1);
    assert_ne!(future.future_denoms[0].denom_pub.h_denom_pub(), h_unused);

    site.sign_keys(&master).await;
    let after = site.keys().await;
    check_keys(&after);
    assert_eq!(after.denoms.len(), before.denoms.len());
    site.stop().await;
}

#[tokio::test]
async fn changes_of_cancelled_requests_and_other_nodes_are_visible() {
    let (master, auditor) = (EddsaPrivateKey::generate(), EddsaPrivateKey::generate());
    let site = Site::signed(&master).await;
    let app = site.running.app();
    let keys = app.keys();
    let denom = &keys.denoms()[0];
    let h_denom_pub = denom.h_denom_pub;
    // Commits a change without rebuilding the key state.
    let commit = async |change| app.core.submit(Command::Management(change)).await.unwrap().unwrap();

    let (auditor_pub, url) = (auditor.public_key(), "http://localhost:8083/".to_owned());
    let published = site.keys().await;
    let terms =
        published.denoms.iter().find(|key| key.denom_pub.h_denom_pub() == h_denom_pub).unwrap().terms();
    let approval = terms.auditor_approval(&url, master.public_key(), h_denom_pub);
    let path = format!("auditors/{auditor_pub}/{h_denom_pub}");
    let body = json!({ "auditor_sig": approval.sign(&auditor) });
    let name = "Auditor".to_owned();
    commit(Management::EnableAuditor { auditor_pub, url, name, start: at(10) }).await;
    assert_eq!(site.post(&path, &body).await, (204, 0), "the auditor is known");

    let master_sig = MasterDenominationKeyRevoked { h_denom_pub }.sign(&master);
    commit(Management::RevokeDenomination { serial: denom.serial, master_sig }).await;
    let path = format!("management/denominations/{h_denom_pub}/revoke");
    assert_eq!(site.post(&path, &RevokeRequest { master_sig }).await, (204, 0), "again");
    let state = app.keys();
    let denom = state.find_denomination(&h_denom_pub).unwrap();
    assert!(denom.revoked && !denom.can_sign());
    site.settle().await;
    assert_eq!(site.future_keys().await.future_denoms.len(), 1, "a replacement waits for its signature");
    site.stop().await;
}

#[tokio::test]
async fn a_signing_key_is_revoked_and_replaced() {
    let master = EddsaPrivateKey::generate();
    let site = Site::signed(&master).await;
    let before = site.keys().await;
    let signkey_pub = before.eddsa_pub;
    let path = format!("management/signkeys/{signkey_pub}/revoke");
    let revoke = RevokeRequest { master_sig: MasterSigningKeyRevoked { signkey_pub }.sign(&master) };
    assert_eq!(site.post(&path, &with(&revoke, "master_sig", bad())).await, (403, 1805));
    assert_eq!(site.post("management/signkeys/ABC/revoke", &revoke).await, (400, 26));
    let unknown = EddsaPrivateKey::generate().public_key();
    let other = RevokeRequest { master_sig: MasterSigningKeyRevoked { signkey_pub: unknown }.sign(&master) };
    assert_eq!(site.post(&format!("management/signkeys/{unknown}/revoke"), &other).await, (404, 1807));
    assert_eq!(site.post(&path, &revoke).await, (204, 0));
    assert_eq!(site.post(&path, &revoke).await, (204, 0));
    assert!(site.running.app().keys().online_key().is_err(), "it signs nothing any more");
    site.settle().await;
    let future = site.future_keys().await;
    assert_eq!(future.future_signkeys.len(), 1);
    assert_eq!(future.future_signkeys[0].stamp_start, at(0));
    site.sign_keys(&master).await;
    let after = site.keys().await;
    check_keys(&after);
    assert_ne!(after.eddsa_pub, signkey_pub);
    assert!(after.signkeys.iter().all(|key| key.key != signkey_pub));
    site.stop().await;
}

#[tokio::test]
async fn auditors() {
    let (master, auditor) = (EddsaPrivateKey::generate(), EddsaPrivateKey::generate());
    let site = Site::signed(&master).await;
    let auditor_pub = auditor.public_key();
    let url = "http://localhost:8083/";
    let add = |start: Timestamp| AuditorAddRequest {
        auditor_pub,
        auditor_url: url.into(),
        auditor_name: "Auditor".into(),
        validity_start: start,
        master_sig: MasterAddAuditor { start_date: start, auditor_pub, h_auditor_url: hash_text(url) }
            .sign(&master),
    };
    let disable = |end: Timestamp| AuditorDisableRequest {
        validity_end: end,
        master_sig: MasterDelAuditor { end_date: end, auditor_pub }.sign(&master),
    };
    let disable_path = format!("management/auditors/{auditor_pub}/disable");
    assert_eq!(site.post(&disable_path, &disable(at(0))).await, (404, 1800));
    assert_eq!(site.post("management/auditors/ABC/disable", &disable(at(0))).await, (400, 26));
    assert_eq!(site.post("management/auditors", &with(&add(at(10)), "master_sig", bad())).await, (403, 1802));
    assert_eq!(site.post("management/auditors", &without(&add(at(10)), "auditor_url")).await, (400, 22));

    let keys = site.keys().await;
    let denom = &keys.denoms[0];
    let h_denom_pub = denom.denom_pub.h_denom_pub();
    let approval = denom.terms().auditor_approval(url, master.public_key(), h_denom_pub);
    let body = json!({ "auditor_sig": approval.sign(&auditor) });
    let path = format!("auditors/{auditor_pub}/{h_denom_pub}");
    assert_eq!(site.post(&path, &body).await, (412, 1901));
    assert_eq!(site.post("management/auditors", &add(at(10))).await, (204, 0));
    assert_eq!(
        site.post("management/auditors", &add(at(10))).await,
        (204, 0),
        "an equal time is not a conflict"
    );
    assert_eq!(site.post("management/auditors", &add(at(9))).await, (409, 1801));
    let renamed = |start| with(&add(start), "auditor_name", json!("Somebody else"));
    assert_eq!(
        site.post("management/auditors", &renamed(at(10))).await,
        (409, 1801),
        "the name is not signed, so a repeated message cannot change it"
    );
    assert_eq!(site.keys().await.auditors[0].auditor_name, "Auditor");
    assert_eq!(site.post(&path, &json!({ "auditor_sig": BAD_SIG })).await, (403, 1900));
    assert_eq!(
        site.post(&format!("auditors/{auditor_pub}/{}", HashCode::random()), &body).await,
        (404, 1005)
    );
    assert_eq!(site.post("auditors/ABC/DEF", &body).await, (400, 26));
    assert_eq!(site.post(&path, &body).await, (204, 0));
    assert_eq!(site.post(&path, &body).await, (204, 0));
    let published = &site.keys().await.auditors;
    assert_eq!(published.len(), 1);
    assert_eq!((published[0].auditor_url.as_str(), published[0].auditor_pub), (url, auditor_pub));
    assert_eq!(published[0].denomination_keys.len(), 1);
    assert_eq!(published[0].denomination_keys[0].denom_pub_h, h_denom_pub);

    assert_eq!(site.post(&disable_path, &with(&disable(at(20)), "master_sig", bad())).await, (403, 1803));
    assert_eq!(site.post(&disable_path, &disable(at(5))).await, (409, 1801));
    assert_eq!(site.post(&disable_path, &disable(at(20))).await, (204, 0));
    assert_eq!(site.post(&disable_path, &disable(at(20))).await, (204, 0));
    let again = site.post("management/auditors", &add(at(20))).await;
    assert_eq!(again, (409, 1801), "in the same second, disabling counts");
    assert!(site.keys().await.auditors.is_empty());
    assert_eq!(site.post(&path, &body).await, (410, 1902));
    site.stop().await;
}

#[tokio::test]
async fn bank_accounts() {
    let master = EddsaPrivateKey::generate();
    let site = Site::operated(&master).await;
    let h_payto = h_payto(PAYTO);
    let add = |start: Timestamp| WireAddRequest {
        payto_uri: PAYTO.into(),
        validity_start: start,
        master_sig_wire: MasterWireDetails { h_wire_details: h_payto }.sign(&master),
        master_sig_add: MasterAddWire { start_date: start, h_payto }.sign(&master),
    };
    let disable = |end: Timestamp| WireDisableRequest {
        payto_uri: PAYTO.into(),
        validity_end: end,
        master_sig_del: MasterDelWire { end_date: end, h_payto }.sign(&master),
    };
    assert_eq!(site.post("management/wire/disable", &disable(at(1))).await, (404, 1811));
    assert_eq!(
        site.post("management/wire", &with(&add(at(1)), "payto_uri", json!("http://x/"))).await,
        (400, 24)
    );
    assert_eq!(site.post("management/wire", &with(&add(at(1)), "master_sig_add", bad())).await, (403, 1809));
    assert_eq!(site.post("management/wire", &with(&add(at(1)), "master_sig_wire", bad())).await, (403, 1808));
    assert_eq!(code(&site.get("wire").await), 1651);
    assert_eq!(site.post("management/wire", &add(at(10))).await, (204, 0));
    assert_eq!(site.post("management/wire", &add(at(10))).await, (204, 0));
    assert_eq!(site.post("management/wire", &add(at(9))).await, (409, 1806));
    let reply = site.get("wire").await;
    assert_eq!((reply.status, code(&reply)), (500, 1653));
    assert_eq!(serde_json::from_slice::<Value>(&reply.body).unwrap()["detail"], "x-taler-bank");

    let fee = |wire: &str, start: Timestamp, end: Timestamp| {
        let message = MasterWireFees {
            h_wire_method: hash_text("x-taler-bank"),
            start_date: start,
            end_date: end,
            wire_fee: amount(wire),
            closing_fee: amount("TESTKUDOS:0.02"),
        };
        WireFeeRequest {
            wire_method: "x-taler-bank".into(),
            fee_start: start,
            fee_end: end,
            wire_fee: amount(wire),
            closing_fee: amount("TESTKUDOS:0.02"),
            master_sig: message.sign(&master),
        }
    };
    let path = "management/wire-fee";
    let good = fee("TESTKUDOS:0.01", at(0), at(1000));
    assert_eq!(site.post(path, &with(&good, "master_sig", bad())).await, (403, 1812));
    assert_eq!(site.post(path, &fee("EUR:0.01", at(0), at(1000))).await, (400, 22));
    assert_eq!(site.post(path, &good).await, (204, 0));
    assert_eq!(site.post(path, &good).await, (204, 0));
    assert_eq!(site.post(path, &fee("TESTKUDOS:0.01", at(500), at(1500))).await, (204, 0), "the same fees");
    assert_eq!(site.post(path, &fee("TESTKUDOS:0.05", at(999), at(1500))).await, (409, 1813));
    assert_eq!(
        site.post(path, &fee("TESTKUDOS:0.05", at(1000), at(2000))).await,
        (204, 0),
        "periods may touch"
    );
    let wire: WireResponse = site.get("wire").await.ok().unwrap();
    assert_eq!(wire.fees["x-taler-bank"].len(), 2);
    let state = site.running.app().keys();
    assert_eq!(state.wire_fee("x-taler-bank", at(999)).unwrap().wire_fee, amount("TESTKUDOS:0.01").money);
    assert_eq!(state.wire_fee("x-taler-bank", at(1000)).unwrap().wire_fee, amount("TESTKUDOS:0.05").money);
    assert!(state.wire_fee("x-taler-bank", at(2000)).is_none() && state.wire_fee("iban", at(1)).is_none());

    assert_eq!(
        site.post("management/wire/disable", &with(&disable(at(20)), "master_sig_del", bad())).await,
        (403, 1810)
    );
    assert_eq!(site.post("management/wire/disable", &disable(at(9))).await, (409, 1806));
    assert_eq!(site.post("management/wire/disable", &disable(at(20))).await, (204, 0));
    let again = site.post("management/wire", &add(at(20))).await;
    assert_eq!(again, (409, 1806), "in the same second, disabling counts");
    assert_eq!(code(&site.get("wire").await), 1651);
    assert_eq!(site.post("management/wire", &add(at(30))).await, (204, 0));
    assert_eq!(site.get("wire").await.status, 200);
    site.stop().await;
}

#[tokio::test]
async fn global_fees() {
    let master = EddsaPrivateKey::generate();
    let site = Site::operated(&master).await;
    let fee = |history: &str, start: Timestamp, end: Timestamp| {
        let mut request = GlobalFeeRequest {
            fee_start: start,
            fee_end: end,
            history_fee: amount(history),
            account_fee: amount("TESTKUDOS:0.04"),
            purse_fee: amount("TESTKUDOS:0"),
            purse_timeout: Duration::from_secs(3600),
            history_expiration: Duration::from_days(365),
            purse_account_limit: 5,
            master_sig: BAD_SIG,
        };
        let message = MasterGlobalFees {
            start_date: start,
            end_date: end,
            purse_timeout: request.purse_timeout,
            history_expiration: request.history_expiration,
            history_fee: request.history_fee,
            account_fee: request.account_fee,
            purse_fee: request.purse_fee,
            purse_account_limit: 5,
        };
        request.master_sig = message.sign(&master);
        request
    };
    let path = "management/global-fee";
    let good = fee("TESTKUDOS:0.03", at(0), at(1000));
    assert_eq!(site.post(path, &with(&good, "master_sig", bad())).await, (403, 1817));
    assert_eq!(site.post(path, &fee("EUR:0.03", at(0), at(1000))).await, (400, 22));
    assert_eq!(site.post(path, &good).await, (204, 0));
    assert_eq!(site.post(path, &good).await, (204, 0));
    assert_eq!(site.post(path, &fee("TESTKUDOS:1", at(999), at(1001))).await, (409, 1816));
    assert_eq!(site.post(path, &fee("TESTKUDOS:1", at(1000), at(2000))).await, (204, 0));
    site.sign_keys(&master).await;
    let keys = site.keys().await;
    check_keys(&keys);
    assert_eq!(keys.global_fees.len(), 2);
    // Expired accounts and fees are no longer listed.
    site.advance(Duration::from_secs(1002)).await;
    let keys = site.keys().await;
    assert_eq!(keys.global_fees.iter().map(|fee| fee.start_date).collect::<Vec<_>>(), [at(1000)]);
    site.stop().await;
}

#[tokio::test]
async fn extensions() {
    let master = EddsaPrivateKey::generate();
    let own = AgeRestrictionConfig::parse("8:10:12:14:16:18:21").unwrap();
    let site = Site::with(|directory| {
        let mut config = operated(directory, &master);
        config.age_restriction = Some(own.clone());
        config.coins[0].age_restricted = true;
        config
    })
    .await;
    site.sign_keys(&master).await;
    let keys = site.keys().await;
    check_keys(&keys);
    let published = keys.extensions.unwrap();
    assert_eq!(published["age_restriction"].config["age_groups"], "8:10:12:14:16:18:21");
    assert!(keys.extensions_sig.is_none(), "configured, but not signed yet");
    let masks: Vec<_> = keys.denominations.iter().map(|group| group.age_mask).collect();
    assert!(masks.contains(&Some(own.mask)) && masks.contains(&None));

    let sign = |extensions: Value| {
        let h_manifests = canonical::manifests_hash(&extensions).unwrap();
        ExtensionsRequest { extensions, extensions_sig: MasterExtension { h_manifests }.sign(&master) }
    };
    let path = "management/extensions";
    let manifest = |groups: &str, version: &str, critical: bool| json!({ "age_restriction": { "critical": critical, "version": version, "config": { "age_groups": groups } } });
    let good = sign(own.manifests());
    for wrong in [
        with(&good, "extensions_sig", bad()),
        with(&good, "extensions", Value::Null),
        serde_json::to_value(sign(json!([]))).unwrap(),
        serde_json::to_value(sign(json!({ "other": {} }))).unwrap(),
        serde_json::to_value(sign(manifest("8:10:12:14:16:18:21", "2", false))).unwrap(),
        serde_json::to_value(sign(manifest("8:10:12:14:16:18:21", "1", true))).unwrap(),
        serde_json::to_value(sign(manifest("8:7", "1", false))).unwrap(),
        serde_json::to_value(sign(manifest("8:10", "1", false))).unwrap(),
    ] {
        assert_eq!(site.post(path, &wrong).await, (400, 26), "{wrong}");
    }
    assert_eq!(site.post(path, &good).await, (204, 0));
    assert_eq!(site.post(path, &good).await, (204, 0));
    let keys = site.keys().await;
    assert_eq!(keys.extensions_sig, Some(good.extensions_sig));
    assert_eq!(serde_json::to_value(&keys.extensions).unwrap(), own.manifests());
    site.stop().await;
}

#[tokio::test]
async fn drains() {
    let master = EddsaPrivateKey::generate();
    let site = Site::operated(&master).await;
    let order_as = |wtid: Wtid, text: &str| {
        let message = MasterDrainProfit {
            wtid,
            date: at(0),
            amount: amount(text),
            h_section: hash_text("exchange-account-1"),
            h_payto: h_payto(PAYTO),
        };
        DrainRequest {
            debit_account_section: "exchange-account-1".into(),
            credit_payto_uri: PAYTO.into(),
            wtid,
            date: at(0),
            amount: amount(text),
            master_sig: message.sign(&master),
        }
    };
    let order = |text: &str| order_as(Wtid::random(), text);
    let good = order("TESTKUDOS:1");
    let drain = async |order: &DrainRequest| site.post("management/drain", order).await;
    assert_eq!(site.post("management/drain", &with(&good, "master_sig", bad())).await, (403, 1818));
    assert_eq!(drain(&order("EUR:1")).await, (400, 22));
    assert_eq!(drain(&good).await, (409, 1012), "nothing was earned");
    earn(&site, "100", "1.5").await;
    assert_eq!(drain(&order("TESTKUDOS:1.50000001")).await, (409, 1012), "the rest is customers' money");
    assert_eq!(drain(&good).await, (204, 0));
    assert_eq!(drain(&good).await, (204, 0));
    let other = order_as(good.wtid, "TESTKUDOS:0.1");
    assert_eq!(drain(&other).await, (409, 26), "another order has this identifier");
    assert_eq!(drain(&order("TESTKUDOS:0.6")).await, (409, 1012), "orders that wait count");
    let (one, two) = (order("TESTKUDOS:0.3"), order("TESTKUDOS:0.3"));
    let both = tokio::join!(drain(&one), drain(&two));
    assert!([((204, 0), (409, 1012)), ((409, 1012), (204, 0))].contains(&both), "{both:?}");
    let stored = site.running.app().core.store.all::<Drains>().unwrap();
    assert_eq!(stored.len(), 2);
    assert_eq!((stored[0].row.amount, stored[0].row.executed), (amount("TESTKUDOS:1").money, false));
    let refused = site.client.post_json(site.url("management/drain"), &order("TESTKUDOS:9")).await.unwrap();
    assert_eq!(refused.json::<Value>().unwrap()["surplus"], "TESTKUDOS:0.2");
    site.stop().await;
}

/// A customer wires money, and pays for a history.
pub(super) async fn earn(site: &Site, wired: &str, fee: &str) {
    let (reserve_pub, money) = (EddsaPrivateKey::generate().public_key(), |text: &str| text.parse().unwrap());
    let credits = book(AccountId([0; 8]), credit(1, reserve_pub, money(wired), PAYTO, at(0)));
    let history = ReserveHistory { reserve_pub, request_time: at(0), fee: money(fee), reserve_sig: BAD_SIG };
    for command in [credits, history.into()] {
        site.running.app().core.submit(command).await.unwrap().unwrap();
    }
}
